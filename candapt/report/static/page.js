"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const card = document.getElementById("card");
  const touch = matchMedia("(pointer: coarse)").matches;
  const plots = [...document.querySelectorAll("[data-chart]")];

  // Text, grid and paper take the colors of the page, which may be light or dark; paper to print on is light.
  const look = () => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const changes = { "font.color": color("--ink"), "hoverlabel.bgcolor": color("--panel"), "hoverlabel.bordercolor": color("--line") };
    for (const axis of ["xaxis", "yaxis"]) {
      changes[`${axis}.gridcolor`] = color("--grid");
      changes[`${axis}.zerolinecolor`] = color("--line");
      changes[`${axis}.linecolor`] = color("--line");
    }
    changes["hoverlabel.font.color"] = color("--ink");
    return changes;
  };
  const recolor = () => plots.forEach((plot) => Plotly.relayout(plot, look()));

  // Names are set as text, never as HTML.
  const tell = (plot, event) => {
    const points = data.points[plot.dataset.chart];
    const point = event.points[0];
    const [name, label, confidence] = points.items[point.customdata];
    const picture = points.thumbnails[point.customdata];
    card.replaceChildren();
    if (picture) {
      const image = document.createElement("img");
      image.src = picture;
      image.alt = "";
      card.append(image);
    }
    const title = document.createElement("b");
    title.textContent = points.classes[label] ?? "no class";
    const rest = document.createElement("span");
    const sure = confidence === null ? "source, labelled" : `target, predicted, ${(100 * confidence).toFixed(1)}% sure`;
    rest.textContent = sure;
    const file = document.createElement("span");
    file.textContent = name;
    card.append(title, rest, file);
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const pointer = event.event.touches?.[0] ?? event.event;
    const left = pointer.clientX + 16 + box.width > innerWidth ? pointer.clientX - 16 - box.width : pointer.clientX + 16;
    card.style.left = `${Math.max(4, left)}px`;
    card.style.top = `${Math.max(4, Math.min(pointer.clientY - box.height / 2, innerHeight - box.height - 4))}px`;
  };

  const highlight = (plot, chosen) => {
    const points = data.points[plot.dataset.chart];
    const shown = plot.data.map((trace) =>
      trace.customdata.map((row) => (chosen === "" ? 0.75 : points.items[row][1] === Number(chosen) ? 0.95 : 0.07)),
    );
    Plotly.restyle(plot, { "marker.opacity": shown });
  };

  for (const plot of plots) {
    const figure = data.charts[plot.dataset.chart];
    const isMap = plot.dataset.chart in data.points;
    if (touch) figure.layout.dragmode = false; // a finger that scrolls the page must not draw a zoom box
    if (innerWidth < 600 && figure.data[0].type === "heatmap") figure.data[0].showscale = false; // it needs the width
    const settings = { responsive: true, displaylogo: false, displayModeBar: isMap && !touch ? "hover" : false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    Plotly.newPlot(plot, figure.data, figure.layout, settings).then(() => {
      Plotly.relayout(plot, look());
      if (!isMap) return;
      plot.on("plotly_hover", (event) => tell(plot, event));
      plot.on("plotly_unhover", () => { card.hidden = true; });
    });
  }
  addEventListener("scroll", () => { card.hidden = true; }, { passive: true });

  // A chart that was folded away when it was drawn does not know its width.
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", () => {
    if (each.open) each.querySelectorAll("[data-chart]").forEach((plot) => Plotly.Plots.resize(plot));
  }));
  document.getElementById("highlight")?.addEventListener("change", (event) => {
    plots.filter((plot) => plot.dataset.chart in data.points).forEach((plot) => highlight(plot, event.target.value));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach((each) => { each.open = true; }); recolor(); });
  addEventListener("afterprint", recolor);
  document.documentElement.dataset.ready = "true";
})();
