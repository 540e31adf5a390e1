// Fills the cards of a board, again by itself if asked to, draws, and leads from a mark to its rows and from a part of a time axis to
// its range. Everything shown comes escaped from the server.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
let drawn = [];
// Pixels of a row of the grid and of the gap between cards, of a letter of a legend, of its symbol and of an axis.
const ROW = 8, GAP = 16, LETTER = 6.5, SYMBOL = 40, AXIS = 60;
// Pixels up to which a movement of the pointer is a click.
const CLICK = 5;

const refresh = Number(document.querySelector("form.span")?.elements.refresh.value);

const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
const configs = JSON.parse(document.getElementById("themes")?.textContent ?? "{}");

async function draw(plot) {
  plot.drawing?.finalize();
  // Without eval: the page's policy forbids it.
  const options = { renderer: "svg", actions: false, ast: true, logLevel: 1, config: configs[theme()] };
  plot.drawing = await vegaEmbed(plot, plot.spec, options);
  plot.view = plot.drawing.view;
  const fields = JSON.parse(plot.dataset.fields);
  plot.classList.toggle("clickable", fields.length > 0);
  let pressed = 0;
  const moved = (event) => Math.abs(event.clientX - pressed) > CLICK;
  plot.onpointerdown = (event) => {
    pressed = event.clientX;
    if (plot.dataset.timeline) addEventListener("pointerup", (event) => {
      if (moved(event)) zoom(plot.view.signal("brush")[plot.dataset.timeline]);
    }, { once: true });
  };
  if (fields.length) plot.view.addEventListener("click", (event, item) => {
    if (item?.datum && !moved(event)) follow(plot, fields, item.datum);
  });
  if (fields.length) {
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.ariaLabel = "Arrow keys go from mark to mark, Enter shows the rows of one";
    plot.onkeydown = (event) => walk(plot, fields, event);
  }
  const isCut = [...plot.querySelectorAll("text")].some((text) => text.textContent.endsWith("…"));
  plot.parentElement.querySelector(".cut").hidden = !isCut;
  plot.dataset.state = "drawn";
}

// By keyboard: from mark to mark of a drawing, and to the rows of one.
function walk(plot, fields, event) {
  const datum = (mark) => mark.__data__?.datum ?? {};
  const marks = [...plot.querySelectorAll(".role-mark:not(.mark-line) path")]
    .filter((mark) => fields.some((name) => name in datum(mark)));
  const at = marks.indexOf(document.activeElement);
  if (event.key === "Enter" && at >= 0) follow(plot, fields, datum(marks[at]));
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step || !marks.length) return;
  event.preventDefault();
  const next = marks.at((at < 0 && step > 0 ? 0 : Math.max(at, 0) + step) % marks.length);
  next.tabIndex = -1;
  next.focus();
}

// Labels and legends as a narrow screen has room for.
function fit({ encoding: { x, y, color } }, width) {
  const labels = Math.min(y.axis.labelLimit, Math.round(width * 0.45));
  // The title above narrowed labels begins where they do.
  if (y.axis.titleX && labels < y.axis.labelLimit) Object.assign(y.axis, { titleAlign: "left", titleX: -labels });
  y.axis.labelLimit = labels;
  const room = width - (y.type === "ordinal" ? labels : AXIS);
  if (color?.legend?.columns) {
    const longest = Math.max(...(color.legend.values ?? color.scale.domain).map((name) => String(name).length));
    color.legend.columns = Math.max(1, Math.floor(room / (longest * LETTER + SYMBOL)));
    color.legend.labelLimit = Math.round(room / color.legend.columns) - SYMBOL;
    color.legend.titleLimit = Math.round(room);
  }
  if (x.type === "ordinal") x.axis.labelOverlap = true;
  else x.axis.tickCount = Math.min(x.axis.tickCount, Math.ceil(room / AXIS));
}

// To the range of a time axis: milliseconds from and to, or windows.
function zoom(range) {
  if (!range?.length) return;
  const written = (end) => typeof end === "number" ? new Date(end).toISOString().slice(0, -1) : end;
  const url = new URL(location.href);
  url.searchParams.set("from", written(range[0]));
  url.searchParams.set("to", written(range.at(-1)));
  location.assign(url);
}

function follow(plot, fields, datum) {
  const url = new URL(plot.dataset.rows, location.href);
  for (const name of fields) if (name in datum) url.searchParams.set(name, datum[name] ?? "");
  if (refresh) url.searchParams.set("refresh", refresh);
  url.hash = "rows";
  location.assign(url);
}

async function begin(body) {
  for (const plot of body.querySelectorAll(".plot")) {
    plot.spec = JSON.parse(plot.nextElementSibling.textContent);
    if (plot.dataset.timeline) plot.spec.params = [{ name: "brush", select: { type: "interval", encodings: ["x"] } }];
    fit(plot.spec, plot.clientWidth);
    drawn.push(plot);
    await draw(plot);
  }
  body.removeAttribute("aria-busy");
}

function trouble(body, text) {
  const error = document.createElement("div");
  error.className = "error";
  error.setAttribute("role", "alert");
  error.textContent = text;
  body.replaceChildren(error);
  body.removeAttribute("aria-busy");
}

async function fill(card) {
  const body = card.querySelector(".body");
  try {
    const answer = await fetch(card.dataset.card);
    const text = await answer.text();
    for (const plot of body.querySelectorAll(".plot")) plot.drawing?.finalize();
    drawn = drawn.filter((plot) => !body.contains(plot));
    if (!answer.ok) return trouble(body, `The server answers ${answer.status}. What it said is in the terminal.`);
    body.innerHTML = text;
    await begin(body);
  } catch (error) {
    trouble(body, `The server doesn't answer (${error.message}). Is \`wirehouse dashboard\` still running?`);
  }
}

async function all() {
  const cards = [...document.querySelectorAll("[data-card]")].filter((card) => !card.querySelector("details:not([open])"));
  // A few at a time: each is a query.
  const next = async () => { for (let card; (card = cards.shift()); ) await fill(card); };
  await Promise.all([next(), next(), next()]);
  root.dataset.ready = "true";
}

// Asks again so many seconds after the last answer, while the page is looked at; a page without cards as a whole.
async function again() {
  await new Promise((go) => setTimeout(go, refresh * 1000));
  if (!document.hidden) {
    if (!document.querySelector("[data-card]")) return location.reload();
    await all();
  }
  again();
}

function chosen(name) {
  root.dataset.theme = name;
  drawn.forEach(draw);
}

try { if (localStorage.theme) root.dataset.theme = localStorage.theme; } catch { /* it is not kept */ }
document.getElementById("theme")?.addEventListener("click", () => {
  const other = theme() === "dark" ? "light" : "dark";
  try { localStorage.theme = other; } catch { /* it is not kept */ }
  chosen(other);
});
// A card takes as many rows of the grid as it is high, so that no other leaves a hole beside it.
const sized = new ResizeObserver((cards) => cards.forEach(({ target }) => {
  target.style.gridRowEnd = `span ${Math.ceil((target.offsetHeight + GAP) / ROW)}`;
}));
document.querySelectorAll(".grid > .card").forEach((card) => sized.observe(card));
dark.addEventListener("change", () => drawn.forEach(draw));
document.querySelectorAll("form.span").forEach((form) => {
  form.elements.refresh.addEventListener("change", () => form.requestSubmit());
  // What isn't chosen isn't in the URL.
  form.addEventListener("submit", () => { for (const field of form.elements) field.disabled = !field.value && field.name; });
});
document.querySelectorAll(".card.wide .body").forEach(begin);
document.querySelectorAll("[data-card] > details").forEach((folded) => {
  folded.addEventListener("toggle", () => folded.open && fill(folded.parentElement));
});
all().then(() => refresh && again());
