// The status page: draws what /events sends. Every text goes in as text, never as markup: reasons and settings hold
// whatever a handler's exception or another member's name says.
"use strict";

const MOST_ROWS = 20;
const MOST_CELLS = 4000;
// Waits that settings and handlers ask for: nothing is wrong while a partition waits for one of these.
const AS_THEY_SHOULD_BE = ["delay", "wait", "rate_limit"];
const $ = (id) => document.getElementById(id);
let before = null; // The last snapshot and its positions, for rates.
let heard = 0;

function element(tag, text, ...classes) {
  const made = document.createElement(tag);
  if (text !== null && text !== undefined) made.textContent = text;
  made.classList.add(...classes.filter(Boolean));
  return made;
}

const number = (value, digits = 0) => (value === null || value === undefined ? "–"
  : value.toLocaleString("en", { maximumFractionDigits: digits }));

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  for (const [size, name, smaller, rest] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${name} ${Math.floor((seconds % size) / smaller)} ${rest}`;
  }
  return `${Math.floor(seconds)} s`;
}

const bytes = (value) => (value === null ? "–" : `${number(value / 1e6)} MB`);
const name = (partition) => `${partition.topic}-${partition.partition}`;

function dot(state) { return element("span", state, "dot", state); }

function row(body, cells) {
  const made = element("tr");
  for (const [content, ...classes] of cells) {
    const cell = element("td", content instanceof Node ? null : content, ...classes);
    if (content instanceof Node) cell.append(content);
    made.append(cell);
  }
  body.append(made);
}

function refill(table, rows) {
  const body = element("tbody");
  for (const cells of rows) row(body, cells);
  $(table).tBodies[0].replaceWith(body);
}

function list(id, pairs, wrapped) {
  const made = [];
  for (const [term, text, bad] of pairs) {
    const [dt, dd] = [element("dt", term), element("dd", text)];
    if (wrapped) {
      const box = element("div", null, bad ? "bad" : "");
      box.append(dt, dd);
      made.push(box);
    } else made.push(dt, dd);
  }
  $(id).replaceChildren(...made);
}

// Records a second since the snapshot before, by partition and by worker; null across restarts.
function rates(now) {
  const found = { partitions: new Map(), workers: new Map(), all: null };
  if (!before || before.pid !== now.pid || now.uptime <= before.uptime) return found;
  const seconds = now.uptime - before.uptime;
  const at = new Map(before.partitions.map((p) => [name(p), p.position]));
  for (const p of now.partitions) {
    const then = at.get(name(p));
    if (then !== null && then !== undefined && p.position !== null) {
      found.partitions.set(name(p), Math.max(0, p.position - then) / seconds);
    }
  }
  const handled = new Map(before.workers.map((w) => [w.worker, w.handled]));
  let all = 0;
  for (const w of now.workers) {
    const rate = Math.max(0, w.handled - (handled.get(w.worker) ?? w.handled)) / seconds;
    found.workers.set(w.worker, rate);
    all += rate;
  }
  found.all = all;
  return found;
}

function head(now, rate) {
  document.title = `${now.group_id} – kunicorn`;
  $("name").textContent = now.group_id;
  const state = now.stopping ? "stopping" : now.group ? now.group.state : "assigned";
  const badge = $("state");
  const problem = now.problem ?? now.outage;
  badge.textContent = problem ? "problem" : state;
  badge.className = `badge ${problem ? "bad" : state === "stable" || state === "assigned" ? "good" : "busy"}`;
  $("problem").hidden = !problem;
  $("problem").textContent = problem ?? "";
  const unknown = now.partitions.filter((p) => p.lag === null).length;
  const lag = now.partitions.reduce((sum, p) => sum + (p.lag ?? 0), 0);
  const ages = now.partitions.map((p) => p.lag_seconds).filter((age) => age !== null);
  const halted = now.partitions.filter((p) => p.state === "halted" || p.state === "stuck").length;
  const waiting = waits(now.workers, ["delay"]);
  const troubled = waits(now.workers, AS_THEY_SHOULD_BE);
  const restarts = now.workers.reduce((sum, w) => sum + w.restarts, 0);
  list("figures", [
    ["Lag, records", number(unknown > 0 && unknown === now.partitions.length ? null : lag)],
    ...(unknown > 0 ? [["Lag not known, partitions", number(unknown)]] : []),
    ["Oldest waits", duration(ages.length ? Math.max(...ages) : null)],
    ["Records/s", number(rate.all)],
    ["Partitions", number(now.partitions.length)],
    ["Halted", number(halted), halted > 0],
    ...(waiting > 0 ? [["Waiting", number(waiting), troubled > 0]] : []),
    ...(now.totals.retry_topics > 0 ? [["Into retry topics", number(now.totals.retry_topics)]] : []),
    ["Dead letters", number(now.totals.dead_letters ?? 0), now.totals.dead_letters > 0],
    ...outputs(now),
    ["Failed calls", number(now.totals.failures ?? 0)],
    ["Worker restarts", number(restarts), restarts > 0],
  ], true);
}

// Partitions that wait, but for those that wait for one of these.
function waits(workers, besides) {
  const counted = workers.flatMap((w) => Object.entries(w.waiting)).filter(([what]) => !besides.includes(what));
  return counted.reduce((sum, [, count]) => sum + count, 0);
}

// What handlers return, where [producing] has it sent.
function outputs(now) {
  const delivery = now.settings.producing?.delivery;
  if (!delivery) return [];
  const sent = ["Records sent", number(now.totals.sent)];
  return delivery === "transactions" ? [sent, ["Aborted transactions", number(now.totals.aborted)]] : [sent];
}

function member(now) {
  const group = now.group;
  $("history").hidden = !group;
  const facts = [["Service", `${now.client_id} ${now.version}, pid ${now.pid}, up ${duration(now.uptime)}`]];
  if (group) {
    facts.push(
      ["Member", (group.instance_id ? `${group.instance_id}, static: ` : "") + (group.member_id || "none yet")],
      ["Generation", `${group.generation}${group.leader ? ", leader" : ""}${group.assignor ? `, ${group.assignor}` : ""}, ${group.protocol} protocol`],
      ["Coordinator", group.coordinator ?? "not known"],
      ["Last heartbeat", `${duration(group.heartbeat_age)} ago; the session ends after ${duration(group.session_timeout)}`],
      ["Rebalances", number(group.rebalances)],
    );
    refill("rebalances", [...group.last_rebalances].reverse().map((r) => [
      [duration(r.age)], [r.reason, "why"], [r.result], [duration(r.seconds), "n"], [number(r.generation), "n"],
    ]));
  }
  if (now.assign) facts.push(["Assigned", `${now.assign.finished} of ${now.assign.partitions} partitions are finished; stop: ${now.assign.stop}`]);
  if (now.commit) facts.push(["Last commit", now.commit.last_age === null ? "none yet" : `${duration(now.commit.last_age)} ago: ${now.commit.last_result}`]);
  if (now.reload) facts.push(["Last reload", `${now.reload.result} ${duration(now.reload.age)} ago: ${now.reload.message}`]);
  list("member", facts, false);
}

function workers(now, rate) {
  refill("workers", now.workers.map((w) => {
    const beside = w.in_flight > 1 ? ` (${w.in_flight} in all)` : "";
    const hand = w.in_hand ? `${w.in_hand} for ${duration(w.in_hand_age)}${beside}` : "–";
    return [
      [String(w.worker)], [dot(w.state)], [w.pid === null ? "–" : String(w.pid), "n"], [number(w.partitions), "n"],
      [number(w.load, 2), "n"], [number(rate.workers.get(w.worker), 1), "n"], [number(w.handled), "n"], [bytes(w.rss_bytes), "n"], [number(w.restarts), "n"],
      [w.paused_by_lease ? "paused: membership is not certain" : hand], [w.last_exit ?? "–", "why"],
      [button("Recycle", "recycle", { worker: w.worker }), "act"],
    ];
  }));
}

function partitions(now, rate) {
  const counts = new Map();
  for (const p of now.partitions) counts.set(p.state, (counts.get(p.state) ?? 0) + 1);
  const total = now.partitions.length;
  $("counts").textContent = total > MOST_CELLS ? `${number(total)}, the first ${number(MOST_CELLS)} drawn` : number(total);
  const most = Math.max(1, ...now.partitions.map((p) => p.lag ?? 0));
  $("map").replaceChildren(...now.partitions.slice(0, MOST_CELLS).map((p) => {
    const cell = element("i", null, p.state, p.lag > 100 && p.lag > most / 2 ? "lagging" : "");
    cell.title = `${name(p)}: ${p.state}${p.reason ? `, ${p.reason}` : ""}, lag ${number(p.lag)}`;
    return cell;
  }));
  $("legend").replaceChildren(...[...counts].map(([state, count]) => {
    const shown = dot(state);
    shown.textContent = `${state} ${count}`;
    return shown;
  }));
  refill("partitions", chosen(now).map((p) => [
    [name(p)], [dot(p.state)], [p.worker === null ? "–" : String(p.worker), "n"], [number(p.lag), "n"],
    [duration(p.lag_seconds), "n"], [number(rate.partitions.get(name(p)), 1), "n"], [number(p.position), "n"],
    [number(p.committed), "n"], [p.reason ?? "", "why"],
    [["paused", "halted"].includes(p.state) ? button("Resume", "resume", { partitions: [`${p.topic}:${p.partition}`] })
      : button("Pause", "pause", { partitions: [`${p.topic}:${p.partition}`] }), "act"],
  ]));
}

function chosen(now) {
  if ($("filter").value === "all") return now.partitions.slice(0, MOST_CELLS);
  const worst = [...now.partitions].sort((a, b) => (b.lag ?? 0) - (a.lag ?? 0)).slice(0, MOST_ROWS);
  const says = (p) => p.state !== "running" || Boolean(p.reason);
  const telling = new Set([...now.partitions.filter(says).slice(0, 200), ...worst]);
  return [...telling].sort((a, b) => says(b) - says(a) || (b.lag ?? 0) - (a.lag ?? 0));
}

function settings(now) {
  if (before && JSON.stringify(before.settings) === JSON.stringify(now.settings)) return;
  $("settings").replaceChildren(...Object.entries(now.settings).flatMap(([section, values]) => {
    const facts = element("dl", null, "facts");
    for (const [key, value] of Object.entries(values)) {
      facts.append(element("dt", key), element("dd", value === null ? "not set" : JSON.stringify(value)));
    }
    return [element("h3", `[${section}]`), facts];
  }));
}

function button(text, action, body) {
  const made = element("button", text);
  made.type = "button";
  made.dataset.action = action;
  made.dataset.body = JSON.stringify(body);
  return made;
}

async function act(action, body) {
  const said = $("said");
  if (!$("token").value) {
    said.textContent = "Type the token first: [http] token of the settings.";
    $("token").focus();
    return;
  }
  if (action === "drain" && !window.confirm("Drain everything and stop this member?")) return;
  said.textContent = "…";
  try {
    const answer = await fetch(`/actions/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${$("token").value}` },
      body,
    });
    said.textContent = `${action}: ${(await answer.json()).said}`;
  } catch (error) {
    said.textContent = `${action}: ${error.message}`;
  }
}

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("button[data-action]");
  if (pressed) act(pressed.dataset.action, pressed.dataset.body ?? "{}");
});
$("act").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("change", () => before && partitions(before, rates(before)));

function draw(now) {
  const rate = rates(now);
  document.body.classList.toggle("acts", now.acts);
  $("actions").hidden = !now.acts;
  head(now, rate);
  member(now);
  // While the pointer rests on a button its row must stay, or the click would hit another one.
  if (!document.querySelector("td button:hover, td button:focus-visible")) {
    workers(now, rate);
    partitions(now, rate);
  }
  settings(now);
  before = now;
  heard = Date.now();
}

const stream = new EventSource("/events");
stream.onmessage = (event) => draw(JSON.parse(event.data));
setInterval(() => {
  const quiet = Math.floor((Date.now() - heard) / 1000);
  $("live").textContent = !heard ? "no data yet" : quiet < 5 ? "live" : `no answer for ${quiet} s: what is shown is old`;
}, 1000);
