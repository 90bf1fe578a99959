"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const card = document.getElementById("card");
  const touch = matchMedia("(pointer: coarse)").matches;
  const plots = [...document.querySelectorAll("[data-chart]")];

  // Text, grid and blue take the colors of the page, which may be light or dark; what is printed is light.
  const themed = (key) => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const figure = JSON.parse(JSON.stringify(data.charts[key]).replaceAll("#0072B2", color("--blue")));
    const { layout } = figure;
    layout.font.color = color("--ink");
    layout.hoverlabel = { bgcolor: color("--panel"), bordercolor: color("--line"), font: { color: color("--ink") } };
    for (const axis of [layout.xaxis, layout.yaxis]) {
      Object.assign(axis, { gridcolor: color("--grid"), zerolinecolor: color("--line"), linecolor: color("--line") });
    }
    if (touch) layout.dragmode = false; // a finger that scrolls the page must not draw a zoom box
    if (innerWidth < 600 && figure.data[0].type === "heatmap") {
      figure.data[0].showscale = false; // it needs the width
      layout.xaxis.showticklabels = layout.xaxis.tickvals.length <= 12;
    }
    return figure;
  };
  const draw = (plot) => {
    const { data: traces, layout } = themed(plot.dataset.chart);
    // A sheet of paper has a width that no element knows yet.
    if (document.documentElement.classList.contains("printing")) layout.width = plot.closest(".wide") ? 620 : 300;
    const settings = { responsive: true, displaylogo: false, displayModeBar: isMap(plot) && !touch ? "hover" : false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    return Plotly.react(plot, traces, layout, settings);
  };
  const isMap = (plot) => plot.dataset.chart in data.maps;
  const pointsOf = (plot) => data.points[data.maps[plot.dataset.chart]];
  // A chart that is folded away has no width: it is drawn when it is first shown.
  const isVisible = (plot) => plot.closest("details:not([open])") === null;
  const isDrawn = (plot) => plot.querySelector(".main-svg") !== null;
  const drawAgain = () => {
    plots.filter((plot) => isDrawn(plot) || isVisible(plot)).forEach(draw);
    highlightAll();
  };

  // Names are set as text, never as HTML.
  const tell = (plot, event) => {
    const points = pointsOf(plot);
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
    rest.textContent = confidence === null ? "source, labeled" : `target, predicted with confidence ${confidence}`;
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
    const points = pointsOf(plot);
    const shown = plot.data.map((trace) =>
      trace.customdata.map((row) => (chosen === "" ? 0.75 : points.items[row][1] === Number(chosen) ? 0.95 : 0.07)),
    );
    Plotly.restyle(plot, { "marker.opacity": shown });
  };

  const choice = document.getElementById("highlight");
  const highlightAll = () => plots.filter((plot) => isMap(plot) && isDrawn(plot)).forEach((plot) => highlight(plot, choice?.value ?? ""));

  for (const plot of plots.filter(isVisible)) {
    draw(plot).then(() => {
      if (!isMap(plot)) return;
      plot.on("plotly_hover", (event) => tell(plot, event));
      plot.on("plotly_unhover", () => { card.hidden = true; });
    });
  }
  addEventListener("scroll", () => { card.hidden = true; }, { passive: true });

  const unfold = () => {
    const fold = document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
    if (fold) fold.open = true;
  };
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", () => {
    const shown = each.open ? [...each.querySelectorAll("[data-chart]")].filter(isVisible) : [];
    shown.forEach((plot) => (isDrawn(plot) ? Plotly.Plots.resize(plot) : draw(plot)));
  }));
  document.querySelector("nav").addEventListener("click", () => setTimeout(unfold));
  addEventListener("hashchange", unfold);
  unfold();
  choice?.addEventListener("change", highlightAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
    document.documentElement.classList.add("printing");
    drawAgain();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    drawAgain();
  });
  document.documentElement.dataset.ready = "true";
})();
