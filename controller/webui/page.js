"use strict";
// Texts of agents and runs are shown by textContent alone. The content security policy refuses markup
// that is made of text.
const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
sessionStorage.setItem("token", token);
history.replaceState(null, "", location.pathname);
const at = (id) => document.getElementById(id);
let open = "", asked = new Map();

function make(tag, kind, text) {
  const e = document.createElement(tag);
  if (kind) e.className = kind;
  if (text !== undefined && text !== "") e.textContent = text;
  return e;
}

async function call(path, body) {
  const options = { headers: { Authorization: "Bearer " + token } };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) throw new Error("open the address that agentctl ui has printed");
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

function clock(time) { return time ? new Date(time).toLocaleString() : ""; }

function took(from, to) {
  const s = Math.max(0, Math.round(((to ? new Date(to) : new Date()) - new Date(from)) / 1000));
  return s < 60 ? s + "s" : s < 3600 ? Math.floor(s / 60) + "m " + (s % 60) + "s" : Math.floor(s / 3600) + "h " + Math.floor(s % 3600 / 60) + "m";
}

function tone(status) {
  if (["done", "skipped"].includes(status)) return "good";
  return status === "running" ? "wait" : "bad";
}

function row(...parts) {
  const r = make("div", "row");
  r.append(...parts);
  return r;
}

function showBatches(list) {
  at("batches").replaceChildren(...list.map((b) => {
    const li = make("li");
    const counts = b.done + " of " + b.all + " done, " + b.failed + " failed, " + b.running + " running, " + b.waiting + " waiting";
    li.append(row(make("span", "name", b.name), make("span", tone(b.status), b.status)), row(make("span", "", counts),
      make("span", "soft", b.id), make("span", "soft", clock(b.started))));
    return li;
  }));
  if (!list.length) at("batches").append(make("li", "soft", "none"));
}

// focused keeps the keyboard's place while a list is made anew.
function focused(list, change) {
  const before = list.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  change();
  if (before !== undefined) {
    const now = [...list.querySelectorAll("button")].find((b) => b.dataset.id === before);
    if (now) now.focus();
  }
}

function showRuns(list) {
  focused(at("runs"), () => at("runs").replaceChildren(...list.map((r) => {
    const li = make("li");
    const name = make("button", "plain name", r.name);
    name.type = "button";
    name.dataset.id = r.id;
    name.addEventListener("click", () => { open = r.id; refresh(); at("run").scrollIntoView(); });
    li.append(row(name, make("span", tone(r.status), r.status.replaceAll("_", " ")), make("span", "soft", r.live ? r.step : "")),
      row(make("span", "soft", r.id), make("span", "soft", r.backend), make("span", "soft", took(r.started, r.ended)),
        make("span", "soft", r.repo)));
    return li;
  })));
  if (!list.length) at("runs").append(make("li", "soft", "none"));
}

function button(text, label, act) {
  const b = make("button", "", text);
  b.type = "button";
  b.setAttribute("aria-label", label);
  b.addEventListener("click", act);
  return b;
}

// showQuestions leaves a question that is still there as it is, so that nobody answers another one
// than they have read.
function showQuestions(list) {
  const ids = new Set(list.map((q) => q.id));
  for (const [id, e] of asked) if (!ids.has(id)) { e.remove(); asked.delete(id); }
  for (const q of list) {
    if (!asked.has(q.id)) {
      const e = make("div");
      const said = make("p", "bad");
      const answer = async (allow) => {
        for (const b of e.querySelectorAll("button")) b.disabled = true;
        try {
          await call("api/answer", { question: q.id, allow });
          said.textContent = allow ? "allowed" : "denied";
        } catch (err) {
          said.textContent = err.message;
          for (const b of e.querySelectorAll("button")) b.disabled = false;
        }
        refresh();
      };
      const answers = make("div", "answers");
      answers.append(button("Allow once", "Allow once: " + q.what, () => answer(true)), button("Deny", "Deny: " + q.what, () => answer(false)));
      e.append(row(make("span", "name", q.run), make("span", "soft", q.kind), make("span", "soft left")), make("div", "what", q.what),
        make("div", "soft", q.why), make("div", "soft", q.rule), answers, said);
      asked.set(q.id, e);
      at("question-list").append(e);
    }
    const left = Math.max(0, Math.round((new Date(q.ends) - new Date()) / 1000));
    asked.get(q.id).querySelector(".left").textContent = "denied in " + left + "s";
  }
  at("questions").hidden = asked.size === 0;
}

function showRun(r) {
  at("run-name").textContent = r.name;
  at("run-about").textContent = r.status.replaceAll("_", " ") + ", " + r.id + ", " + r.backend + ", " + took(r.started, r.ended);
  at("run-error").textContent = r.error || "";
  at("moments").replaceChildren(...r.moments.map((m) => {
    const li = make("li", m.kind);
    const time = make("span", "soft", new Date(m.time).toLocaleTimeString());
    if (m.kind === "step") {
      li.append(row(time, make("span", m.error ? "bad" : "", m.what), make("span", "soft", m.ended ? took(m.time, m.ended) : "goes on")));
      if (m.error) li.append(make("div", "bad", m.error));
      return li;
    }
    li.append(row(time, make("span", m.kind === "denied" ? "bad" : "wait", m.kind + (m.count > 1 ? " " + m.count + " times" : "")),
      make("span", "what", m.what)), make("div", "soft", m.rule), make("div", "soft", m.hint));
    return li;
  }));
  if (r.left) at("moments").append(make("li", "soft", r.left + " more: see agentctl runs report " + r.id));
  for (const t of r.troubles) at("moments").append(make("li", "bad", t));
  at("run").hidden = false;
}

// wait is the time to the next refresh: longer where there are so many runs that reading them takes a while.
let running = false, again = false, wait = 2000;
async function refresh() {
  if (running) { again = true; return; }
  running = true;
  const began = performance.now();
  try {
    const all = await call("api/overview");
    showQuestions(all.questions);
    showBatches(all.batches);
    showRuns(all.runs);
    at("troubles").replaceChildren(...all.troubles.map((t) => make("li", "", t)));
    const id = open;
    if (id) {
      const r = await call("api/runs/" + encodeURIComponent(id));
      if (id === open) showRun(r);
    }
    at("state").textContent = "live, " + new Date().toLocaleTimeString();
    at("state").className = "";
  } catch (err) {
    at("state").textContent = err.message;
    at("state").className = "bad";
  }
  running = false;
  wait = Math.min(10000, Math.max(2000, 10 * (performance.now() - began)));
  if (again) { again = false; refresh(); }
}

at("close").addEventListener("click", () => { open = ""; at("run").hidden = true; });
async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, wait);
}
live();
