"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const chooser = $("chooser");
  let about = null;
  let state = null;
  let busy = false; // while an answer is on its way, keys do nothing: they would judge a picture that nobody has seen
  let revealed = false; // the reviewer asked for the outcome early

  // Who answers: the same browser goes on with its own sample after the page was closed.
  const reviewer = (() => {
    const made = [...crypto.getRandomValues(new Uint8Array(6))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    try {
      const kept = localStorage.getItem("candapt-reviewer") ?? made;
      localStorage.setItem("candapt-reviewer", kept);
      return kept;
    } catch {
      return made; // storage is switched off
    }
  })();

  const send = async (path, values = {}) => {
    if (busy) return;
    busy = true;
    try {
      const response = await fetch(path, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ reviewer, ...values }),
      });
      const content = await response.json();
      if (!response.ok) throw new Error(content.error);
      $("problem").hidden = true;
      show(content);
    } catch (error) {
      const gone = error instanceof TypeError; // fetch's own error
      const reason = gone ? "The command no longer answers: start it again and open its new address." : error.message;
      $("problem").textContent = `${path === "answer" ? "Not stored. " : ""}${reason}`;
      $("problem").hidden = false;
    } finally {
      busy = false;
    }
  };

  const percent = (share) => {
    if (share === 0 || share === 1 || (share >= 0.005 && share < 0.995)) return `${Math.round(100 * share)}%`;
    if (Math.min(share, 1 - share) < 0.0005) return share < 0.5 ? "<0.1%" : ">99.9%";
    return `${(100 * share).toFixed(1)}%`;
  };

  const show = (content) => {
    state = content;
    const { sample, answered, measured } = state;
    $("main").hidden = false;
    $("judge").hidden = !sample;
    $("finished").hidden = Boolean(sample);
    if (sample) {
      const readable = /^\d+$/.test(sample.name) ? `Row ${sample.name}` : sample.name;
      $("prediction").textContent = sample.prediction;
      $("name").textContent = readable;
      $("picture").hidden = false;
      $("bare").hidden = true;
      $("picture").onerror = () => {
        $("picture").hidden = true;
        const hint = document.createElement("span");
        hint.textContent = "no picture: look it up in your own data";
        $("bare").replaceChildren(readable, hint);
        $("bare").hidden = false;
      };
      $("picture").src = `picture/${sample.row}`;
      if (state.following !== null) new Image().src = `picture/${state.following}`;
    }
    const goal = about.number;
    $("count").textContent = answered <= goal ? `${answered} of ${goal} answers` : `${answered} answers`;
    $("left-out").textContent = measured.unsure ? `${measured.unsure} of them “cannot say”` : "";
    $("progress").value = Math.min(1, answered / goal);
    $("undo").disabled = !state.can_undo;
    showOutcome(measured, goal - answered);
  };

  const band = (name, { value, low, high }) => {
    $(name).style.left = `${100 * low}%`;
    $(name).style.width = `${100 * (high - low)}%`;
    $(`${name}-value`).style.left = `${100 * value}%`;
  };

  const showOutcome = (measured, missing) => {
    const { interval, level } = measured;
    const visible = interval !== null && (missing <= 0 || revealed);
    $("outcome").hidden = !visible;
    $("reveal").hidden = visible || interval === null;
    $("waiting").hidden = visible;
    $("waiting").textContent = `The outcome is shown after ${about.number} answers, so that it cannot tempt you to stop early.`;
    if (!visible) return;
    $("headline").textContent = `${percent(interval.value)} right`;
    $("between").textContent = `between ${percent(interval.low)} and ${percent(interval.high)} (${percent(level)} interval)`;
    band("measured", interval);
    const known = "value" in about.estimate;
    document.querySelectorAll("#bands .estimate").forEach((each) => { each.hidden = !known; });
    if (known) band("estimate", about.estimate);
    const more = missing <= 0 ? "You can stop here. Every further answer narrows the interval." : `${missing} answers to go.`;
    $("note").textContent = `${measured.right} of ${measured.judged} judged predictions are right, out of ${about.size.toLocaleString("en")} in all. ${more}`;
    $("remarks").replaceChildren(...measured.remarks.map((text) => {
      const line = document.createElement("p");
      line.textContent = text;
      return line;
    }));
    $("classes").hidden = !measured.classes.length;
    $("class-rows").replaceChildren(...measured.classes.map((each) => {
      const row = document.createElement("tr");
      const { low, high } = each.interval;
      row.append(cell("th", each.name), cell("td", `${each.right} of ${each.judged}`), cell("td", `${percent(low)} – ${percent(high)}`));
      return row;
    }));
  };
  const cell = (kind, text) => {
    const made = document.createElement(kind);
    if (kind === "th") made.scope = "row";
    made.textContent = text;
    return made;
  };

  const answer = (verdict, label = null) => {
    if (state?.sample) send("answer", { row: state.sample.row, answer: verdict, label });
  };

  // The chooser of the true class.
  const OTHERS = [
    { text: "none of these classes", verdict: "other", label: null },
    { text: "wrong, but I cannot say which", verdict: "wrong", label: null },
  ];
  let choices = [];
  let chosen = 0;
  const fold = (text) => text.toLowerCase().replaceAll(/[_\s-]+/g, " ");
  const fill = () => {
    const wanted = fold($("search").value.trim());
    const rank = (name) => (fold(name) === wanted ? 0 : fold(name).startsWith(wanted) ? 1 : 2);
    const classes = about.classes.filter((name) => name !== state.sample.prediction && fold(name).includes(wanted));
    classes.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true }));
    choices = [...classes.map((name) => ({ text: name, verdict: "wrong", label: name })), ...OTHERS];
    chosen = 0;
    $("choices").replaceChildren(...choices.map((each, place) => {
      const item = document.createElement("li");
      item.id = `choice-${place}`;
      item.setAttribute("role", "option");
      item.className = each.label === null ? "special" : "";
      item.textContent = each.text;
      item.addEventListener("click", () => take(place));
      return item;
    }));
    mark();
  };
  const mark = () => {
    [...$("choices").children].forEach((item, place) => item.setAttribute("aria-selected", String(place === chosen)));
    $("search").setAttribute("aria-activedescendant", `choice-${chosen}`);
    $(`choice-${chosen}`).scrollIntoView({ block: "nearest" });
  };
  const take = (place) => {
    const { verdict, label } = choices[place];
    chooser.close();
    answer(verdict, label);
  };
  const choose = () => {
    if (!state?.sample || busy) return;
    $("search").value = "";
    chooser.showModal();
    fill();
    $("search").focus();
  };
  $("search").addEventListener("input", fill);
  $("chooser-form").addEventListener("submit", (event) => {
    event.preventDefault();
    take(chosen);
  });
  chooser.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    chosen = (chosen + step + choices.length) % choices.length;
    mark();
  });

  const reveal = () => {
    revealed = true;
    if (state) show(state);
  };
  const actions = {
    ArrowRight: () => answer("right"), y: () => answer("right"),
    ArrowLeft: choose, n: choose,
    ArrowDown: () => answer("unsure"), s: () => answer("unsure"),
    u: () => send("undo"), Backspace: () => send("undo"),
  };
  addEventListener("keydown", (event) => {
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || chooser.open || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
  $("right").addEventListener("click", () => answer("right"));
  $("wrong").addEventListener("click", choose);
  $("unsure").addEventListener("click", () => answer("unsure"));
  $("undo").addEventListener("click", () => send("undo"));
  $("reveal").addEventListener("click", reveal);

  fetch("about").then((response) => response.json()).then((content) => {
    about = content;
    $("title").textContent = about.title;
    document.title = `${about.title} · candapt review`;
    send("show");
  }).catch(() => { $("title").textContent = "The command does not answer: start it again and open its new address."; });
})();
