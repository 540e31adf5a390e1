// Fills the cards of a board, draws, and leads from a mark to its rows. Everything shown comes escaped from the server.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const drawn = [];

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
  if (fields.length) plot.view.addEventListener("click", (event, item) => item?.datum && follow(plot, fields, item.datum));
  plot.dataset.state = "drawn";
}

function follow(plot, fields, datum) {
  const url = new URL(plot.dataset.rows, location.href);
  for (const name of fields) if (name in datum) url.searchParams.set(name, datum[name] ?? "");
  url.hash = "rows";
  location.assign(url);
}

async function begin(body) {
  for (const plot of body.querySelectorAll(".plot")) {
    plot.spec = JSON.parse(plot.nextElementSibling.textContent);
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
    if (!answer.ok) return trouble(body, `The server answers ${answer.status}. What it said is in the terminal.`);
    body.innerHTML = text;
    await begin(body);
  } catch (error) {
    trouble(body, `The server doesn't answer (${error.message}). Is \`wirehouse dashboard\` still running?`);
  }
}

async function all() {
  const cards = [...document.querySelectorAll("[data-card]")];
  document.querySelectorAll(".card.wide .body").forEach(begin);
  // A few at a time: each is a query.
  const next = async () => { for (let card; (card = cards.shift()); ) await fill(card); };
  await Promise.all([next(), next(), next()]);
  root.dataset.ready = "true";
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
dark.addEventListener("change", () => drawn.forEach(draw));
all();
