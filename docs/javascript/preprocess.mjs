// From the pixels of an image to the input of an exported model, as Pillow and candapt do it, in plain JavaScript.

/** The input of the network, channels first, from RGBA pixels; `images` is that entry of the run's model.json. */
export function toInput(rgba, width, height, images) {
  const { size, resize, mean, std, grey } = images;
  const half = (resize - size) / 2;
  const start = Number.isInteger(half) ? half : 2 * Math.round(half / 2); // as Python rounds: to the even number
  const input = new Float32Array(mean.length * size * size);
  mean.forEach((_, channel) => {
    const plane = resized(planeOf(rgba, grey ? null : channel), width, height, resize);
    for (let y = 0; y < size; y++)
      for (let x = 0; x < size; x++)
        input[(channel * size + y) * size + x] =
          (plane[(y + start) * resize + x + start] / 255 - mean[channel]) / std[channel];
  });
  return input;
}

/** One channel of RGBA pixels on white, or their gray (null), with Pillow's weights and rounding. */
function planeOf(rgba, channel) {
  const plane = new Uint8Array(rgba.length / 4);
  for (let pixel = 0; pixel < plane.length; pixel++) {
    const alpha = rgba[4 * pixel + 3] / 255;
    const [r, g, b] = [0, 1, 2].map((c) => Math.round(rgba[4 * pixel + c] * alpha + 255 * (1 - alpha)));
    plane[pixel] = channel === null ? (r * 19595 + g * 38470 + b * 7471 + 32768) >> 16 : [r, g, b][channel];
  }
  return plane;
}

/** A plane of width × height made `side` × `side`: rows first, then columns, rounded after each. */
function resized(plane, width, height, side) {
  const [across, down] = [filters(width, side), filters(height, side)];
  const narrow = new Uint8ClampedArray(side * height);
  for (let y = 0; y < height; y++)
    across.forEach(({ first, weights }, x) => {
      narrow[y * side + x] = Math.round(weights.reduce((sum, w, k) => sum + w * plane[y * width + first + k], 0));
    });
  const whole = new Uint8ClampedArray(side * side);
  down.forEach(({ first, weights }, y) => {
    for (let x = 0; x < side; x++)
      whole[y * side + x] = Math.round(weights.reduce((sum, w, k) => sum + w * narrow[(first + k) * side + x], 0));
  });
  return whole;
}

/** The weights of Pillow's bicubic filter from `from` pixels to `to`; when it shrinks, the filter is as much wider. */
function filters(from, to) {
  const scale = Math.max(from / to, 1);
  return Array.from({ length: to }, (_, place) => {
    const center = ((place + 0.5) * from) / to;
    const first = Math.max(0, Math.trunc(center - 2 * scale + 0.5));
    const last = Math.min(from, Math.trunc(center + 2 * scale + 0.5));
    const raw = Array.from({ length: last - first }, (_, k) => bicubic((first + k - center + 0.5) / scale));
    const sum = raw.reduce((a, b) => a + b);
    return { first, weights: raw.map((weight) => weight / sum) };
  });
}

function bicubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? -0.5 * (((x - 5) * x + 8) * x - 4) : 0;
}
