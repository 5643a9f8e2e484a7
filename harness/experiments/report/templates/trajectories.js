"use strict";
// Lists the episodes of this page and shows one of them. Texts are inserted as text, never as markup.
(() => {
  const ROW_PX = 56; // a row's height, as in trajectories.css
  const LONG = 4000; // a longer text is shown folded
  const MARKS = 10000; // at most, in one text: a browser takes no more than about 120,000 nodes at once
  const PARTS_KEPT = 4;
  const ENDS = {
    terminated: "ended by the task's rules",
    horizon: "stopped by K",
    truncated: "stopped by the environment's own limit",
    context: "the context was full",
    "environment-error": "the environment failed",
  };

  const $ = (id) => document.getElementById(id);
  const form = document.querySelector("form");
  const list = $("list");
  let data; // the index: runs, tasks, columns, parts
  let starts; // the first episode of every part
  let shown = []; // episodes that pass the filters, in order
  let opened = -1;
  let search = { text: "", hits: null, turn: 0 }; // hits: for each episode, whether its text contains the search's text
  const inflated = new Map(); // the parts that were read last
  const loaded = new Promise((done) => addEventListener("DOMContentLoaded", done, { once: true }));

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  async function unpack(id) {
    if (!$(id)) await loaded; // the texts follow this script
    const element = $(id);
    if (!element) return null;
    const characters = atob(element.textContent);
    const bytes = new Uint8Array(characters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i); // Uint8Array.from takes ten times as long
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  async function readPart(number) {
    if (!inflated.has(number)) {
      inflated.set(number, unpack(`part-${number}`));
      if (inflated.size > PARTS_KEPT) inflated.delete(inflated.keys().next().value);
    }
    return inflated.get(number);
  }

  function partOf(episode) {
    let low = 0;
    let high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= episode) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  async function readEpisode(episode) {
    const part = partOf(episode);
    return (await readPart(part))[episode - starts[part]];
  }

  // The filters, and the address that stores them

  function settings() {
    return Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  }

  function name(episode) {
    const { run, update, position } = data.columns;
    return `${run[episode]}.${update[episode]}.${position[episode]}`;
  }

  function address(episode) {
    const query = new URLSearchParams(settings());
    if (episode >= 0) query.set("episode", name(episode));
    return `#${query}`;
  }

  function passes(wanted) {
    const c = data.columns;
    const task = (wanted.task || "").toLowerCase();
    const tasks = data.tasks.map((id) => id.toLowerCase().includes(task));
    const number = (text, otherwise) => (text === undefined ? otherwise : Number(text));
    const from = number(wanted.from, -Infinity);
    const to = number(wanted.to, Infinity);
    return (i) =>
      (wanted.run === undefined || c.run[i] === Number(wanted.run)) &&
      tasks[c.task[i]] &&
      (wanted.success === undefined || Boolean(c.success[i]) === (wanted.success === "1")) &&
      (wanted.end === undefined || c.end[i] === wanted.end) &&
      (wanted.loss === undefined || c.in_loss[i] === (wanted.loss === "1")) &&
      c.update[i] >= from &&
      c.update[i] <= to;
  }

  function filter() {
    const wanted = settings();
    const pass = passes(wanted);
    const hits = wanted.text ? search.hits : null;
    shown = [];
    for (let i = 0; i < data.columns.run.length; i++) {
      if (pass(i) && (!hits || hits[i])) shown.push(i);
    }
    const column = data.columns[wanted.sort];
    if (column) {
      const value = (i) => (column[i] === null ? -Infinity : column[i]);
      shown.sort((a, b) => value(b) - value(a) || a - b);
    }
    $("rows").style.height = `${shown.length * ROW_PX}px`;
    say("");
    draw();
  }

  function say(progress) {
    const all = data.columns.run.length;
    const left = Number($("index").dataset.logged) - all;
    const missing = left > 0 ? ` (${left.toLocaleString("en")} more were logged)` : "";
    $("count").textContent =
      `${shown.length.toLocaleString("en")} of ${all.toLocaleString("en")} episodes${missing}${progress}`;
  }

  async function searchTexts() {
    const text = (settings().text || "").toLowerCase();
    if (text === search.text) return;
    const turn = search.turn + 1;
    search = { text, hits: text ? new Uint8Array(data.columns.run.length) : null, turn };
    filter();
    if (!text) return;
    say(", searching");
    for (let part = 0; part < starts.length; part++) {
      const episodes = await unpack(`part-${part}`);
      if (search.turn !== turn) return; // another search has begun
      episodes.forEach((episode, i) => {
        search.hits[starts[part] + i] = texts(episode).some((one) => one.toLowerCase().includes(text)) ? 1 : 0;
      });
      if (part % 8 === 7) {
        filter();
        say(`, searching: ${Math.round((100 * (part + 1)) / starts.length)} %`);
      }
    }
    filter();
  }

  function texts(episode) {
    return [episode.prompt || "", ...episode.turns.flatMap((turn) => [turn.reasoning || "", turn.action || "", turn.observation || ""])];
  }

  // The list. Only the visible rows exist

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_PX) - 4);
    const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / ROW_PX) + 8);
    const made = [];
    for (let place = first; place < last; place++) made.push(row(place));
    $("rows").replaceChildren(...made);
    const active = shown.indexOf(opened);
    if (active >= first && active < last) list.setAttribute("aria-activedescendant", `row-${active}`);
    else list.removeAttribute("aria-activedescendant");
    list.classList.toggle("empty", !shown.length);
  }

  function row(place) {
    const i = shown[place];
    const c = data.columns;
    const steps = `${c.length[i]} steps${c.horizon[i] ? ` of ${c.horizon[i]}` : ""}`;
    const about = [when(i), steps, data.runs.length > 1 ? runName(c.run[i]) : tokens(c.tokens[i])]; // an older run has no tokens
    const made = el(
      "div",
      {
        class: "row",
        role: "option",
        id: `row-${place}`,
        "aria-selected": i === opened ? "true" : "false",
        "aria-setsize": shown.length,
        "aria-posinset": place + 1,
      },
      el("span", { class: "task" }, data.tasks[c.task[i]]),
      verdict(i),
      el("span", { class: "about" }, about.filter(Boolean).join(" · ")),
    );
    made.style.top = `${place * ROW_PX}px`;
    made.addEventListener("click", () => go(i));
    return made;
  }

  function verdict(i) {
    const c = data.columns;
    if (c.end[i] === "environment-error") return el("span", { class: "verdict lost" }, "lost");
    if (c.success[i]) return el("span", { class: "verdict success" }, "✓ success");
    return el("span", { class: "verdict failure" }, c.end[i] === "terminated" ? "✗ failure" : "✗ cut off");
  }

  function runName(number) {
    const run = data.runs[number];
    return `${run.arm}, seed ${run.seed}`;
  }

  // One episode

  function go(episode) {
    location.hash = address(episode); // adds an entry to the browser's history, so that "back" leads to the list
  }

  async function open(episode) {
    opened = episode;
    document.body.classList.toggle("reading", episode >= 0);
    draw();
    if (episode < 0) {
      $("episode").replaceChildren(el("p", { class: "quiet" }, "Choose an episode."));
      return;
    }
    const texts = await readEpisode(episode);
    const system = texts.system_prompt ? await unpack(`system-${texts.system_prompt}`) : null;
    if (opened !== episode) return; // another episode was opened meanwhile
    const main = $("episode");
    main.replaceChildren(...page(episode, texts, system));
    main.scrollTop = 0;
    if (document.activeElement !== list) main.focus({ preventScroll: true });
    const place = shown.indexOf(episode);
    if (place >= 0) bringIntoView(place);
  }

  function bringIntoView(place) {
    const top = place * ROW_PX;
    if (top < list.scrollTop || top + ROW_PX > list.scrollTop + list.clientHeight) {
      list.scrollTop = Math.max(0, top - list.clientHeight / 2);
    }
  }

  function page(i, texts, system) {
    const c = data.columns;
    const run = data.runs[c.run[i]];
    const turns = texts.turns;
    const trained = c.in_loss[i]; // null if an older run did not log it
    return [
      steps(i),
      el("h2", {}, data.tasks[c.task[i]], " ", verdict(i)),
      facts(i, texts, run),
      group(i),
      tokenBar(i, texts),
      system ? el("details", { class: "message" }, el("summary", {}, "System prompt, as the environment gives it"), block(system)) : null,
      message("prompt", "Prompt", texts.prompt || "", tokens(texts.prompt_tokens), "not trained on"),
      ...turns.map((turn, n) =>
        el(
          "section",
          { class: "turn", "aria-label": `Turn ${n + 1} of ${turns.length}` },
          turn.reasoning || turn.reasoning_tokens
            ? message(
                "thought",
                `${n + 1}. Thought`,
                turn.reasoning || "",
                tokens(turn.reasoning_tokens),
                turn.unfinished ? "never closed, so there is no action" : null,
              )
            : null,
          message(
            trained ? "action trained" : "action",
            `${n + 1}. Action`,
            turn.action || "",
            tokens(turn.action_tokens - (turn.reasoning_tokens || 0)),
            trained === null ? null : trained ? "trained on" : "not trained on",
            turn.cut ? "cut at the maximum number of tokens" : null,
            turn.malformed ? "no valid call" : null,
            texts.prompt_tokens && turn.prompt_tokens ? `after another prompt of ${tokens(turn.prompt_tokens)}` : null,
          ),
          message("observation", "Observation", turn.observation || "", tokens(turn.observation_tokens), "not trained on"),
        ),
      ),
      el(
        "p",
        { class: "end" },
        `End: ${ending(i)}.`,
        texts.error ? ` ${texts.error}` : "",
      ),
    ].filter(Boolean);
  }

  function steps(i) {
    const place = shown.indexOf(i);
    const button = (words, to) => {
      const made = el("button", { type: "button", disabled: to < 0 || to >= shown.length || place < 0 }, words);
      made.addEventListener("click", () => go(shown[to]));
      return made;
    };
    const back = el("a", { class: "back", href: address(-1) }, "← List");
    return el("nav", { "aria-label": "Episodes" }, back, button("Previous", place - 1), button("Next", place + 1));
  }

  function facts(i, texts, run) {
    const c = data.columns;
    const made = el("dl", { class: "facts" });
    const add = (term, ...words) => made.append(el("div", {}, el("dt", {}, term), el("dd", {}, ...words)));
    add("Reward", c.reward[i] === null ? "unknown" : String(c.reward[i]));
    add("Steps", c.horizon[i] ? `${c.length[i]} of K = ${c.horizon[i]}` : `${c.length[i]}, no K`);
    if (texts.optimal_steps) add("Shortest solution", `${texts.optimal_steps} steps`);
    add("End", ending(i));
    add("Truncated", ["horizon", "truncated", "context"].includes(c.end[i]) ? "yes" : "no");
    if (c.update[i] >= 0) add("Advantage", advantage(i, texts));
    if (c.tokens[i]) add("Tokens", `${c.tokens[i]}, of which the model wrote ${c.action_tokens[i]}`);
    if (c.update[i] >= 0) add("Update", String(c.update[i]));
    add("Environment", run.env);
    add("Run", `${run.arm}, seed ${run.seed} (${run.name})`);
    return made;
  }

  function ending(i) {
    return ENDS[data.columns.end[i]] || String(data.columns.end[i]);
  }

  // The episodes of an evaluation belong to no update
  function when(i) {
    const update = data.columns.update[i];
    return update < 0 ? "evaluation" : `update ${update}`;
  }

  function advantage(i, texts) {
    const value = data.columns.advantage[i];
    if (value !== null) return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}, in the loss`;
    if (data.columns.in_loss[i] === null) return "not logged";
    const rewards = new Set(siblings(i).map((j) => data.columns.reward[j]));
    return rewards.size === 1 ? "0, because all rewards of its group are equal; not in the loss" : "not in the loss";
  }

  function siblings(i) {
    const c = data.columns;
    const same = (j) => c.run[j] === c.run[i] && c.update[j] === c.update[i];
    const found = [];
    for (let j = i; j >= 0 && same(j); j--) if (c.group[j] === c.group[i]) found.unshift(j);
    for (let j = i + 1; j < c.run.length && same(j); j++) if (c.group[j] === c.group[i]) found.push(j);
    return found;
  }

  function group(i) {
    const c = data.columns;
    const links = siblings(i).map((j) =>
      el(
        "a",
        {
          href: address(j),
          class: c.success[j] ? "success" : "failure",
          "aria-current": j === i ? "true" : undefined,
          "aria-label": `${c.success[j] ? "success" : "failure"} in ${c.length[j]} steps`,
        },
        `${c.success[j] ? "✓" : "✗"} ${c.length[j]}`,
      ),
    );
    return el("p", { class: "group" }, `The ${links.length} episodes of its group (verdict, steps): `, ...links);
  }

  function tokenBar(i, texts) {
    if (!texts.prompt_tokens || data.columns.in_loss[i] === null) return null;
    const trained = data.columns.in_loss[i];
    const bar = el("div", { class: "bar", role: "img" });
    const add = (kind, count) => {
      if (!count) return;
      const piece = el("span", { class: kind });
      piece.style.flexGrow = count;
      bar.append(piece);
    };
    add("prompt", texts.prompt_tokens);
    for (const turn of texts.turns) {
      add("prompt", turn.prompt_tokens); // an agent program has changed its history
      add(trained ? "action trained" : "action", turn.action_tokens);
      add("observation", turn.observation_tokens);
    }
    const written = data.columns.action_tokens[i];
    const words = trained
      ? `The episode's ${data.columns.tokens[i]} tokens in order: the ${written} coloured ones were trained on.`
      : `The episode's ${data.columns.tokens[i]} tokens in order: the model wrote the ${written} hatched ones. None was trained on.`;
    bar.setAttribute("aria-label", words);
    return el("figure", { class: "tokens" }, bar, el("figcaption", {}, words));
  }

  function tokens(count) {
    return !count ? null : `${count} token${count === 1 ? "" : "s"}`;
  }

  function message(kind, title, text, ...notes) {
    const about = notes.filter(Boolean).map((note) => el("span", { class: "note" }, note));
    return el("div", { class: `message ${kind}` }, el("h3", {}, title, ...about), block(text));
  }

  function block(text) {
    const pre = el("pre");
    const folded = text.length > LONG && !(search.text && text.toLowerCase().includes(search.text));
    pre.append(...marked(folded ? text.slice(0, LONG) : text));
    if (!text) pre.append(el("span", { class: "quiet" }, "(empty)"));
    if (!folded) return pre;
    const more = el("button", { type: "button" }, `Show all ${text.length.toLocaleString("en")} characters`);
    more.addEventListener("click", () => {
      pre.replaceChildren(...marked(text));
      more.remove();
    });
    return el("div", {}, pre, more);
  }

  function marked(text) {
    if (!search.text) return [text];
    const nodes = [];
    const lower = text.toLowerCase();
    let at = 0;
    // If the lower-case text has another length (a dotted capital I), positions do not match, and the text stays unmarked.
    for (
      let hit = lower.indexOf(search.text);
      lower.length === text.length && hit >= 0 && nodes.length < 2 * MARKS;
      hit = lower.indexOf(search.text, at)
    ) {
      nodes.push(text.slice(at, hit), el("mark", {}, text.slice(hit, hit + search.text.length)));
      at = hit + search.text.length;
    }
    nodes.push(text.slice(at));
    return nodes;
  }

  // The address names the episode and the filters

  function find(wanted) {
    const [run, update, position] = (wanted || "").split(".").map(Number);
    const c = data.columns;
    return c.run.findIndex((_, i) => c.run[i] === run && c.update[i] === update && c.position[i] === position);
  }

  function read(hash) {
    const query = new URLSearchParams(hash.slice(1));
    for (const field of form.elements) if (field.name) field.value = query.get(field.name) || "";
    return query.get("episode");
  }

  async function start() {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser can't inflate the page's data; use Chrome or Edge 80, Firefox 113, Safari 16.4 or later");
    }
    data = await unpack("index");
    starts = [];
    data.parts.reduce((sum, count) => (starts.push(sum), sum + count), 0);
    form.elements.run.append(...data.runs.map((_, i) => el("option", { value: i }, runName(i))));
    const ends = [...new Set(data.columns.end)];
    form.elements.end.append(...ends.map((end) => el("option", { value: end }, ENDS[end] || end)));
    $("filters").open = matchMedia("(min-width: 60rem)").matches;

    let pause;
    form.addEventListener("input", (event) => {
      clearTimeout(pause);
      pause = setTimeout(async () => {
        history.replaceState(null, "", address(opened));
        if (event.target.name === "text") await searchTexts();
        else filter();
      }, event.target.name === "text" ? 250 : 0);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () =>
      setTimeout(async () => {
        history.replaceState(null, "", address(opened));
        await searchTexts();
        filter();
      }),
    );
    list.addEventListener("scroll", draw, { passive: true });
    list.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined || !shown.length) return;
      event.preventDefault();
      const place = shown.indexOf(opened);
      go(shown[Math.max(0, Math.min(shown.length - 1, place < 0 ? 0 : place + by))]);
    });
    addEventListener("resize", draw);
    addEventListener("hashchange", () => {
      const wanted = read(location.hash);
      searchTexts();
      filter();
      open(find(wanted));
    });
    const wanted = read(location.hash);
    filter();
    searchTexts();
    if (wanted) await open(find(wanted));
  }

  start().catch((error) => {
    $("count").textContent = `The episodes can't be shown: ${error.message}`;
  });
})();
