"use strict";
(() => {
  const PARALLEL = 4; // requests at a time; the server puts samples that wait together into one batch
  const PATIENCE = 20; // how often a full queue is tried again
  const MOST = 200; // files of one drop
  const at = (id) => document.getElementById(id);
  // With spaces at which no line breaks. No model is sure beyond doubt.
  const percent = (share) => `${share > 0.995 ? ">\u00a099" : share < 0.005 ? "<\u00a01" : Math.round(100 * share)}\u00a0%`;
  const rounded = (share) => `${Math.round(100 * share)}\u00a0%`; // of many samples
  const LISTED = 0.005; // classes of lower probability are not listed
  const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
  const waiting = [];
  let facts = null;
  let working = 0;
  let kept = 0;

  // Names are set as text, never as HTML.
  const made = (tag, text, parent, kind) => {
    const element = document.createElement(tag);
    element.textContent = text ?? "";
    if (kind) element.className = kind;
    parent?.append(element);
    return element;
  };

  class Refused extends Error {}

  const ask = async (path, options = {}, patience = PATIENCE) => {
    const token = sessionStorage.getItem("token");
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch {
      throw new Refused("The server does not answer. Is it still running?");
    }
    if (answer.status === 401) {
      at("work").hidden = true;
      at("entrance").hidden = false;
      at("wrong").hidden = !token;
      sessionStorage.removeItem("token");
    }
    if (answer.status === 503 && patience > 0) {
      await pause(Number(answer.headers.get("Retry-After")) || 1);
      return ask(path, options, patience - 1);
    }
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refused(content.error || `The server answered with status ${answer.status}.`);
    return content;
  };

  const predict = (options) => ask("predict?top=5&similar=5&pictures=true", { method: "POST", ...options });

  // What is known of the model

  const start = async () => {
    try {
      facts = await ask("model");
    } catch (error) {
      at("trouble").hidden = !at("entrance").hidden;
      at("trouble").textContent = error.message;
      return;
    }
    at("trouble").hidden = at("entrance").hidden = true;
    at("work").hidden = false;
    const takesImages = facts.input.kind.includes("images");
    at("task").textContent = facts.task;
    document.title = `${facts.task} · candapt`;
    at("verdict").hidden = false;
    at("verdict").textContent = verdict();
    at("verdict").classList.toggle("careful", facts.evidence.warnings.length > 0);
    at("drop").hidden = !takesImages;
    at("bounds").textContent = `up to ${Math.floor(facts.limits.file_bytes / 2 ** 20)} MiB and ${Math.round(facts.limits.pixels / 1e6)} million pixels each`;
    at("numbers").hidden = facts.input.kind !== "vectors";
    at("width").textContent = facts.input.shape[0];
    at("nothing").hidden = facts.input.kind !== "arrays";
    at("nothing").textContent = `This model takes arrays of shape ${facts.input.shape.join(" × ")}: send them to the API.`;
    at("empty").textContent = `Nothing yet. ${takesImages ? "Files go" : "Numbers go"} to this server and nowhere else.`;
    describe();
    document.documentElement.dataset.ready = "true";
  };

  const verdict = () => {
    const { estimated_accuracy: estimate, warnings, calibrated } = facts.evidence;
    const sorts = `This model sorts into ${facts.classes.length} classes.`;
    const warned = warnings.length ? " Its training raised a warning: read it below before you trust it." : "";
    if (!estimate) return `${sorts}${warned}${calibrated ? "" : " Its confidence is not calibrated: it is probably too high."}`;
    const range = `between ${rounded(estimate.low)} and ${rounded(estimate.high)}`;
    const samples = facts.input.kind.includes("images") ? "images" : "samples";
    return `${sorts} On the ${samples} that it was adapted to, an estimated ${rounded(estimate.value)} of its predictions are right (${range}, without labels).${warned}`;
  };

  const describe = () => {
    const { evidence, input, versions } = facts;
    const list = at("facts");
    list.replaceChildren();
    const fact = (name, value, remark) => {
      const box = made("div", "", list);
      made("dt", name, box);
      const text = made("dd", "", box);
      made("b", value, text);
      if (remark) made("span", remark, text);
    };
    if (evidence.estimated_accuracy) fact("Estimated accuracy", rounded(evidence.estimated_accuracy.value), "without labels");
    if (evidence.mean_confidence !== null) fact("Mean confidence", rounded(evidence.mean_confidence), "over the target");
    fact("Method", facts.method, facts.backbone);
    fact("Input", input.shape.slice(-2).join(" × "), input.shape.length > 1 ? "pixels" : "numbers");
    fact("Compared with", String(facts.similar.samples), "source samples");
    fact("Computed by", facts.engine, "");
    at("remarks").replaceChildren();
    evidence.warnings.forEach((each) => made("p", each, at("remarks"), "notice alarm"));
    evidence.notes.forEach((each) => made("p", each, at("remarks"), "notice"));
    at("classes-count").textContent = String(facts.classes.length);
    at("classes").replaceChildren();
    facts.classes.forEach((name) => made("li", name, at("classes")));
    const body = at("versions").tBodies[0];
    body.replaceChildren();
    for (const name of new Set([...Object.keys(versions.trained), ...Object.keys(versions.serving)])) {
      const row = made("tr", "", body);
      made("th", name, row).scope = "row";
      made("td", versions.trained[name] ?? "", row);
      made("td", versions.serving[name] ?? "", row);
    }
  };

  // Results, the newest first

  const newCard = (name, file) => {
    const card = at("card").content.firstElementChild.cloneNode(true);
    const [picture, none] = [card.querySelector("img"), card.querySelector(".nothing")];
    card.querySelector(".file").textContent = name;
    card.querySelector(".state").textContent = "waiting …";
    card.classList.toggle("plain", !file);
    card.querySelector(".given").hidden = !file;
    if (file) {
      picture.alt = name;
      picture.onload = () => URL.revokeObjectURL(picture.src);
      picture.onerror = () => { // browsers show no TIFF
        picture.hidden = true;
        none.hidden = false;
        card.querySelector(".given").hidden = card.dataset.done === "refused";
      };
      picture.src = URL.createObjectURL(file);
    }
    return card;
  };

  const newCards = (items) => {
    const cards = items.map(([name, file]) => newCard(name, file));
    at("results").prepend(...cards);
    count();
    return cards;
  };

  const count = () => {
    const number = at("results").children.length;
    at("count").textContent = number ? `Results (${number})` : "Results";
    at("clear").hidden = !number;
    at("empty").hidden = number > 0;
  };

  const refuse = (card, sentence) => {
    card.classList.add("refused");
    if (!card.querySelector(".nothing").hidden) card.querySelector(".given").hidden = true;
    card.querySelector(".label").textContent = sentence;
    card.querySelector(".state").hidden = true;
    card.dataset.done = "refused";
  };

  const show = (card, prediction) => {
    const within = (selector) => card.querySelector(selector);
    within(".label").textContent = prediction.label;
    within(".state").hidden = true;
    within(".sure").hidden = false;
    within(".meter i").style.width = `${100 * prediction.confidence}%`;
    within(".sure b").textContent = percent(prediction.confidence);
    within(".sure .soft").textContent = facts.evidence.calibrated ? "sure" : "sure, not calibrated";
    const unknown = prediction.unknown ?? 0;
    card.classList.toggle("unsure", prediction.confidence < 0.5);
    within(".own").hidden = false;
    const remarks = [
      unknown > 0.5 ? `Probably none of the classes (${percent(unknown)}).` : prediction.confidence < 0.5 ? "Check this one." : "",
      `The network itself says ${percent(prediction.softmax)}.`,
    ];
    within(".own").textContent = remarks.filter(Boolean).join(" ");
    const top = within(".top");
    const listed = prediction.probabilities.filter((each) => each.probability >= LISTED);
    top.hidden = listed.length < 2;
    for (const { label, probability } of listed) {
      made("dt", label, top).title = label;
      made("i", "", made("dd", "", top, "share")).style.width = `${100 * probability}%`;
      made("dd", percent(probability), top);
    }
    showSimilar(within(".near"), prediction.similar);
    card.dataset.done = "predicted";
  };

  const showSimilar = (place, similar) => {
    place.hidden = !similar.length;
    place.classList.toggle("wordy", !similar.some((each) => each.picture));
    for (const each of similar) {
      const item = made("li", "", place.querySelector("ul"));
      if (each.picture) Object.assign(made("img", "", item), { src: each.picture, alt: each.name ?? each.label });
      else made("span", "no picture", item, "nothing");
      const text = made("p", "", item);
      made("b", each.label, text).title = each.label;
      const similarity = made("small", "", text);
      made("span", "similarity ", similarity, "word");
      similarity.append(each.similarity.toFixed(2));
      if (each.name !== null) made("small", each.name.split("/").pop(), text).title = each.name;
    }
  };

  // Images

  const next = async () => {
    if (working >= PARALLEL || !waiting.length) return;
    working += 1;
    const [file, card] = waiting.shift();
    try {
      if (file.size > facts.limits.file_bytes) throw new Refused(`“${file.name}” is larger than this server takes.`);
      const form = new FormData();
      form.append("images", file);
      show(card, (await predict({ body: form })).predictions[0]);
    } catch (error) {
      refuse(card, error.message);
    }
    working -= 1;
    next();
  };

  const take = (files) => {
    const some = [...files].slice(0, MOST);
    at("trouble").hidden = files.length <= MOST;
    at("trouble").textContent = `Only the first ${MOST} of ${files.length} files are taken at a time.`;
    const cards = newCards(some.map((file) => [file.name, file]));
    some.forEach((file, place) => waiting.push([file, cards[place]]));
    for (let each = 0; each < PARALLEL; each += 1) next();
  };
  const takesImages = () => facts && !at("drop").hidden;

  at("files").addEventListener("change", (event) => {
    take(event.target.files);
    event.target.value = ""; // the same file may be chosen again
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    at("drop").classList.add("over");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) at("drop").classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    at("drop").classList.remove("over");
    if (takesImages()) take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    if (takesImages() && event.clipboardData.files.length) take(event.clipboardData.files);
  });

  // Feature vectors

  at("numbers").addEventListener("submit", async (event) => {
    event.preventDefault();
    const lines = at("rows").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!lines.length) return;
    const samples = lines.map((line) => line.replace(/^\[|\][,]?$/g, "").split(/[\s,;]+/).filter(Boolean).map(Number));
    const first = kept + 1;
    kept += lines.length;
    const cards = newCards(lines.map((_, row) => [`row ${first + row}`, null]));
    try {
      const body = JSON.stringify({ samples });
      const { predictions } = await predict({ body, headers: { "Content-Type": "application/json" } });
      predictions.forEach((each, row) => show(cards[row], each));
    } catch (error) {
      cards.forEach((card) => refuse(card, error.message));
    }
  });

  at("clear").addEventListener("click", () => {
    waiting.length = 0;
    at("results").replaceChildren();
    count();
  });
  at("entrance").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", at("token").value.trim());
    at("token").value = "";
    start();
  });
  start();
})();
