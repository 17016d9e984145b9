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

function drawTree(answer) {
  const svg = byId("arcs");
  svg.replaceChildren();
  const graphs = Object.entries(answer.graphs);
  byId("tree").hidden = !answer.heads.length && !answer.constituents.length && !graphs.length;
  if (byId("tree").hidden) return;
  const widths = answer.words.map((word) => Math.max(46, 9 * word.length + 18));
  const middles = [];
  let right = 10;
  for (const width of widths) { middles.push(right + width / 2); right += width; }
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
  const reach = (word, head) => Math.abs(word - head);
  answer.words.forEach((word, index) => {
    const text = element(svg, "text", { class: "word", x: middles[index], y: top, tabindex: 0, role: "button" }, word);
    text.addEventListener("click", () => choose(index));
    text.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(index); });
    element(svg, "text", { class: "tag", x: middles[index], y: top + 14 }, answer.tags[index] || "");
  });
  let deepest = 0;
  answer.heads.forEach((head, word) => {
    const original = state.parsed && state.parsed.heads[word];
    const kind = original === head ? "arc" : "arc edited";
    const y = top + 22;
    const depth = 14 + 13 * Math.min(reach(word, head), 9);
    deepest = Math.max(deepest, depth);
    if (head === word) {
      element(svg, "path", { class: kind, d: `M${middles[word]} ${y}v16` });
      element(svg, "text", { class: "relation", x: middles[word], y: y + 28 }, "root");
      return;
    }
    const from = middles[head] + (word > head ? 5 : -5);
    const to = middles[word];
    element(svg, "path", { class: kind, d: `M${from} ${y}C${from} ${y + depth} ${to} ${y + depth} ${to} ${y}` });
    element(svg, "path", { class: kind, d: `M${to - 3} ${y + 5}L${to} ${y}L${to + 3} ${y + 5}` });
    element(svg, "text", { class: "relation", x: (from + to) / 2, y: y + 0.75 * depth + 9 }, answer.deprels[word] || "");
  });
  let bottom = top + deepest + 44;
  for (const [meaning, edges] of graphs) bottom = drawGraph(svg, answer.words, middles, meaning, edges, bottom);
  svg.setAttribute("width", right + 10);
  svg.setAttribute("height", bottom);
}

// A graph below the tree, with its words again: a word may have several heads. It is not edited.
function drawGraph(svg, words, middles, meaning, edges, top) {
  element(svg, "text", { class: "tag", x: middles[0], y: top + 4 }, meaning);
  words.forEach((word, index) => element(svg, "text", { class: "word", x: middles[index], y: top + 26 }, word));
  const y = top + 34;
  let deepest = 0;
  for (const [head, word, label] of edges) {
    const depth = 14 + 13 * Math.min(Math.abs(word - head), 9);
    deepest = Math.max(deepest, depth);
    const to = middles[word];
    const from = middles[head] + (word > head ? 5 : -5);
    if (head === word) element(svg, "path", { class: "arc", d: `M${to} ${y}v16` });
    else element(svg, "path", { class: "arc", d: `M${from} ${y}C${from} ${y + depth} ${to} ${y + depth} ${to} ${y}M${to - 3} ${y + 5}L${to} ${y}L${to + 3} ${y + 5}` });
    const x = head === word ? to : (from + to) / 2;
    element(svg, "text", { class: "relation", x, y: head === word ? y + 28 : y + 0.75 * depth + 9 }, label);
  }
  return y + deepest + 24;
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
  byId("text").value = byId("text").value || example;
});
