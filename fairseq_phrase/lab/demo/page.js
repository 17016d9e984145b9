// The page: asks the server for each model's answer, draws the tree, and lets one edit it.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const state = { models: [], text: "", heads: null, parsed: null, first: {}, chosen: null, round: 0 };

function element(parent, name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;  // never markup
  parent.append(made);
  return made;
}

async function ask(model, text, heads) {
  const response = await fetch("api/translate", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, text, heads }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(typeof answer.detail === "string" ? answer.detail : "bad request");
  return answer;
}

function complain(message) {
  byId("problem").textContent = message;
  byId("problem").hidden = !message;
}

async function run(edited) {
  const round = ++state.round;
  document.body.setAttribute("aria-busy", "true");
  complain("");
  try {
    for (const model of state.models) {
      const answer = await ask(model, state.text, edited ? state.heads : null);
      if (round !== state.round) return;  // a newer sentence or tree
      if (!edited) state.first[model] = answer.translation;
      if (!edited && (state.parsed === null || !state.parsed.heads.length)) {
        state.parsed = answer;
        state.heads = [...answer.heads];
      }
      if (model === state.models[0] || answer.heads.length) drawTree(answer);
      drawCard(model, answer, edited);
    }
  } catch (error) {
    if (round === state.round) complain(error.message);
  } finally {
    if (round === state.round) document.body.setAttribute("aria-busy", "false");
  }
}

// The tree: constituents above the words, dependency arcs below them.

function isBelow(word, ancestor) {
  const seen = new Set();
  while (!seen.has(word)) {
    if (word === ancestor) return true;
    seen.add(word);
    word = state.heads[word];
  }
  return false;
}

function giveHead(word, head) {
  const heads = state.heads;
  const old = heads[word];
  if (word === head) {  // the word becomes the root
    heads[heads.findIndex((each, index) => each === index)] = word;
    heads[word] = word;
  } else {
    // A head below the word takes the word's place first, so that no circle arises.
    if (isBelow(head, word)) heads[head] = old === word ? head : old;
    heads[word] = head;
  }
}

function choose(word) {
  if (state.chosen === null) {
    state.chosen = word;
    document.querySelectorAll("#arcs .word")[word].classList.add("chosen");
    return;
  }
  const dependent = state.chosen;
  state.chosen = null;
  giveHead(dependent, word);
  byId("reset").hidden = false;
  run(true);
}

// The page's fonts decide how wide a text is.
const pen = document.createElement("canvas").getContext("2d");
function widthOf(text, size) {
  pen.font = `${size}px system-ui, sans-serif`;
  return pen.measureText(text || "").width;
}

function isRightToLeft(words) {
  const letters = words.join("").match(/\p{L}/gu) || [];
  return 2 * letters.filter((letter) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(letter)).length > letters.length;
}

// The middles of the words, and the width of the tree. The label of an arc fits between its ends.
function wordMiddles(answer, edges) {
  const widths = answer.words.map((word, index) => 16 + Math.max(30, widthOf(word, 15), widthOf(answer.tags[index], 11)));
  for (const [head, word, label] of edges)
    if (head === word) widths[word] = Math.max(widths[word], widthOf(label, 11) + 16);
  const gaps = widths.slice(1).map((width, index) => (widths[index] + width) / 2);
  for (const [head, word, label] of edges)
    if (Math.abs(head - word) === 1) {
      const before = Math.min(head, word);
      gaps[before] = Math.max(gaps[before], widthOf(label, 11) + 20);
    }
  let x = 10 + widths[0] / 2;
  const middles = [x, ...gaps.map((gap) => (x += gap))];
  const right = x + widths[widths.length - 1] / 2 + 10;
  return [isRightToLeft(answer.words) ? middles.map((middle) => right - middle) : middles, right];
}

// The level of each arc, from 1, so that no two lie on each other; roots are below all others.
function arcLevels(edges) {
  const ends = edges.map(([head, word]) => [Math.min(head, word), Math.max(head, word)]);
  const order = ends.map((_, index) => index).filter((index) => ends[index][0] < ends[index][1]);
  order.sort((one, other) => (ends[one][1] - ends[one][0]) - (ends[other][1] - ends[other][0]));
  const used = [], levels = edges.map(() => 0);
  for (const index of order) {
    const [low, high] = ends[index];
    for (let gap = low; gap < high; gap++) levels[index] = Math.max(levels[index], 1 + (used[gap] || 0));
    for (let gap = low; gap < high; gap++) used[gap] = levels[index];
  }
  const deepest = Math.max(0, ...levels) + 1;
  return levels.map((level) => level || deepest);
}

// Arcs from heads to dependents below the words; returns where they end.
function drawArcs(svg, edges, middles, top, isEdited) {
  const levels = arcLevels(edges);
  const labels = [];
  edges.forEach(([head, word, label], index) => {
    const kind = isEdited(word, head) ? "arc edited" : "arc";
    const x = middles[word], depth = top + 22 * levels[index];
    const towards = head === word ? 0 : Math.sign(x - middles[head]);
    const start = middles[head] + 5 * towards, bend = 6 * towards;
    const path = towards ? `M${start} ${top}V${depth - 6}Q${start} ${depth} ${start + bend} ${depth}H${x - bend}Q${x} ${depth} ${x} ${depth - 6}V${top}` : `M${x} ${depth}V${top}`;
    element(svg, "path", { class: kind, d: path });
    element(svg, "path", { class: kind, d: `M${x - 3} ${top + 5}L${x} ${top}L${x + 3} ${top + 5}` });
    labels.push([(start + x) / 2, depth + 4, label]);
  });
  for (const [x, y, label] of labels) element(svg, "text", { class: "relation", x, y }, label);  // above all arcs
  return top + 22 * Math.max(0, ...levels) + 10;
}

function drawTree(answer) {
  const svg = byId("arcs");
  svg.replaceChildren();
  const graphs = Object.entries(answer.graphs);
  byId("tree").hidden = !answer.heads.length && !answer.constituents.length && !graphs.length;
  if (byId("tree").hidden) return;
  const tree = answer.heads.map((head, word) => [head, word, answer.deprels[word] || (head === word ? "root" : "")]);
  const [middles, width] = wordMiddles(answer, [...tree, ...graphs.flatMap(([, edges]) => edges)]);
  const spans = answer.constituents.filter(([start, end]) => end - start > 1);
  const heights = spans.map(() => 1);  // children come before their parents
  spans.forEach(([start, end], index) => {
    for (let below = 0; below < index; below++)
      if (start <= spans[below][0] && spans[below][1] <= end) heights[index] = Math.max(heights[index], heights[below] + 1);
  });
  const top = 24 + 26 * Math.max(0, ...heights);
  spans.forEach(([start, end, label], index) => {
    const y = top - 18 - 26 * (heights[index] - 1) - 12;
    const x = (middles[start] + middles[end - 1]) / 2;
    element(svg, "path", { class: "branch", d: `M${middles[start]} ${y + 16}V${y + 6}H${middles[end - 1]}V${y + 16}` });
    element(svg, "text", { class: "constituent", x, y: y + 2 }, label);
  });
  answer.words.forEach((word, index) => {
    const text = element(svg, "text", { class: "word", x: middles[index], y: top, tabindex: 0, role: "button" }, word);
    text.addEventListener("click", () => choose(index));
    text.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(index); });
    element(svg, "text", { class: "tag", x: middles[index], y: top + 14 }, answer.tags[index] || "");
  });
  const isEdited = (word, head) => !state.parsed || state.parsed.heads[word] !== head;
  let bottom = drawArcs(svg, tree, middles, top + 22, isEdited);
  // Graphs with the words again: a word may have several heads. They are not edited.
  for (const [meaning, edges] of graphs) {
    element(svg, "text", { class: "meaning", x: 10, y: bottom + 18 }, meaning);
    answer.words.forEach((word, index) => element(svg, "text", { class: "word", x: middles[index], y: bottom + 40 }, word));
    bottom = drawArcs(svg, edges, middles, bottom + 48, () => false);
  }
  svg.setAttribute("width", width);
  svg.setAttribute("height", bottom);
}

// A model's card: the translation, and the attention on its nodes.

function options(select, names, chosen) {
  select.replaceChildren(...names.map((name) => {
    const option = document.createElement("option");
    option.textContent = name;
    return option;
  }));
  select.selectedIndex = Math.min(chosen, names.length - 1);
}

function showTranslation(card, model, answer, edited) {
  const line = card.querySelector(".translation");
  const first = state.first[model] || "";
  const known = new Set(first.split(" "));
  line.replaceChildren();
  answer.translation.split(" ").forEach((word, index) => {
    if (index) line.append(" ");
    const piece = document.createElement(edited && !known.has(word) ? "mark" : "span");
    piece.textContent = word;
    line.append(piece);
  });
  const before = card.querySelector(".before");
  before.hidden = !edited || first === answer.translation;
  before.textContent = first;
  const reads = answer.reads_trees ? "reads the tree" : "reads no tree";
  card.querySelector(".note").textContent = [reads, `${answer.seconds} s`, answer.no_attention].filter(Boolean).join("; ");
}

function drawCard(model, answer, edited) {
  let card = [...byId("models").children].find((each) => each.dataset.model === model);
  if (!card) {
    card = byId("card").content.firstElementChild.cloneNode(true);
    card.dataset.model = model;
    card.querySelector("h2").textContent = model;
    byId("models").append(card);
  }
  showTranslation(card, model, answer, edited);
  const attention = answer.attention;
  card.querySelector(".attention").hidden = attention === null;
  if (attention === null) return;
  const [block, layer, head] = ["block", "layer", "head"].map((name) => card.querySelector("." + name));
  const blocks = Object.keys(attention.blocks);
  const chosen = block.options.length ? [block.selectedIndex, layer.selectedIndex, head.selectedIndex] : [0, Infinity, 0];
  const first = attention.blocks[blocks[0]];
  options(block, blocks, chosen[0]);
  options(layer, first.map((_, index) => String(index + 1)), chosen[1]);
  options(head, ["mean", ...first[0].map((_, index) => String(index + 1))], chosen[2]);
  const draw = () => drawAttention(card, attention, attention.blocks[block.value][layer.selectedIndex], head.selectedIndex);
  for (const select of [block, layer, head]) select.onchange = draw;
  draw();
}

function drawAttention(card, attention, heads, chosen) {
  const count = attention.nodes.length;
  const weights = attention.nodes.map((_, query) => attention.nodes.map((__, key) =>
    chosen ? heads[chosen - 1][query][key] : heads.reduce((sum, each) => sum + each[query][key], 0) / heads.length));
  const canvas = card.querySelector("canvas");
  const most = Math.max(...weights.flat());
  const shade = (weight) => `${Math.round(100 * weight / most)}%`;
  const { cell, margin } = drawMatrix(canvas, attention.nodes, weights, most);
  card.querySelector(".to").textContent = most.toFixed(2);
  card.querySelector(".dashed").hidden = attention.tokens === count;
  const nodes = card.querySelector(".nodes");
  const hint = card.querySelector(".weights");
  nodes.replaceChildren(...attention.nodes.map((label, index) => {
    const node = document.createElement("span");
    node.className = index < attention.tokens ? "node" : "node other";
    node.textContent = label || "·";
    node.tabIndex = 0;
    return node;
  }));
  const show = (query) => {
    [...nodes.children].forEach((node, key) => {
      node.classList.toggle("query", key === query);
      node.style.background = `color-mix(in srgb, var(--accent) calc(0.6 * ${shade(weights[query][key])}), transparent)`;
      node.title = weights[query][key].toFixed(3);
    });
    const best = weights[query].map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]).slice(0, 4);
    hint.textContent = `${attention.nodes[query]} attends to ` +
      best.map(([weight, key]) => `${attention.nodes[key]} (${weight.toFixed(2)})`).join(", ");
  };
  [...nodes.children].forEach((node, query) => {
    node.addEventListener("mouseenter", () => show(query));
    node.addEventListener("focus", () => show(query));
  });
  canvas.onmousemove = (event) => {
    const row = Math.floor((event.offsetY * canvas.height / canvas.clientHeight / devicePixelRatio - margin) / cell);
    if (row >= 0 && row < count) show(row);
  };
}

// Rows attend to columns. Both have the nodes' names if there is room for them.
function drawMatrix(canvas, names, weights, most) {
  const cell = Math.max(4, Math.min(22, Math.floor(440 / names.length)));
  const style = getComputedStyle(canvas);
  const margin = cell < 9 ? 16 : Math.min(110, 8 + 7 * Math.max(...names.map((name) => name.length)));
  const size = margin + cell * names.length + 1;
  canvas.width = canvas.height = size * devicePixelRatio;
  canvas.style.width = `${size}px`;
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.fillStyle = style.color;
  weights.forEach((row, query) => row.forEach((weight, key) => {
    context.globalAlpha = weight / most;
    context.fillRect(margin + key * cell, margin + query * cell, cell, cell);
  }));
  context.globalAlpha = 1;
  context.strokeStyle = style.getPropertyValue("--line");
  context.strokeRect(margin + 0.5, margin + 0.5, size - margin - 1, size - margin - 1);
  context.fillStyle = getComputedStyle(document.body).color;
  context.font = `${Math.min(12, Math.max(cell, 9))}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const label = (text, x, y, turned) => {
    context.save();
    context.translate(x, y);
    if (turned) context.rotate(-Math.PI / 2);
    context.textAlign = turned ? "left" : "right";
    context.fillText(text, 0, 0, margin - 6);
    context.restore();
  };
  if (cell < 9) {
    context.textAlign = "left";
    context.fillText("columns: attended to", margin, 8);
    context.save();
    context.rotate(-Math.PI / 2);
    context.textAlign = "right";
    context.fillText("rows: attend", -margin, 8);
    context.restore();
  } else names.forEach((name, index) => {
    const middle = margin + (index + 0.5) * cell;
    label(name || "·", margin - 4, middle, false);
    label(name || "·", middle, margin - 4, true);
  });
  return { cell, margin };
}

byId("question").addEventListener("submit", (event) => {
  event.preventDefault();
  Object.assign(state, { text: byId("text").value, heads: null, parsed: null, first: {}, chosen: null });
  byId("reset").hidden = true;
  run(false);
});
byId("reset").addEventListener("click", () => {
  state.heads = [...state.parsed.heads];
  state.chosen = null;
  byId("reset").hidden = true;
  run(false);
});
fetch("api/start").then((response) => response.json()).then(({ models, example }) => {
  state.models = models;
  if (byId("text").value || !example) return;
  byId("text").value = example;
  byId("question").requestSubmit();  // the page begins with an answer
});
