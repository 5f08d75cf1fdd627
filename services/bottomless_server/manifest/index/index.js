"use strict";
// Everything from the server is put in as text, never as markup.
const PAGE = 50, SHOWN_MAX = 1000, AT_ONCE = 4, EVERY_MS = 15000;
const by = id => document.getElementById(id);
const show = (id, shown) => { by(id).hidden = !shown; };
let key = null, asked = false, wanted = PAGE, chosen = null, picked = false;
// Another number whenever another key is used, or none: what was asked for before shows nothing.
let turn = 0, loading = null;

async function ask(path, options) {
  const headers = {Accept: "application/json"};
  if (key !== null) headers.Authorization = "Bearer " + key;
  const answer = await fetch(path, {headers, cache: "no-store", credentials: "omit", ...options});
  return {status: answer.status, body: await answer.json().catch(() => ({}))};
}

function element(name, text, properties) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== null) made.textContent = text;
  return made;
}

async function showHealth() {
  let [text, state] = ["does not answer", "bad"];
  try {
    const {status} = await ask("/readyz");
    [text, state] = status === 200 ? ["ready", "good"] : ["not ready", "bad"];
  } catch { /* It is said below. */ }
  by("health").textContent = text;
  by("health").className = "pill " + state;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return (unit === 0 ? count : count.toFixed(count < 10 ? 1 : 0)) + " " + units[unit];
}

function age(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return count + " " + name + (count === 1 ? "" : "s") + " ago";
  }
  return seconds < 10 ? "just now" : Math.floor(seconds) + " seconds ago";
}

function cells(bounds) {
  const records = bounds.next_offset - bounds.first_offset;
  const aged = time => time === null ? ["–"] : [age(time), time];
  return [
    [records.toLocaleString("en"), "offsets " + bounds.first_offset + " to " + bounds.next_offset],
    [bytes(bounds.size_bytes)], aged(bounds.first_timestamp), aged(bounds.last_timestamp),
  ];
}

function rowOf(name, values) {
  const row = document.createElement("tr");
  const pick = element("button", name, {type: "button"});
  pick.setAttribute("aria-pressed", String(name === chosen));
  pick.addEventListener("click", () => {
    choose(name);
    picked = true;
    showLines();
    showPlaces();
  });
  row.append(document.createElement("td"));
  row.firstChild.append(pick);
  values.forEach(([text, title], place) => {
    const className = ["number", "number", "wide", ""][place];
    const cell = element("td", text, {className, title: title ?? ""});
    // Where there is no room for a head of the table, the cells say what they are.
    cell.dataset.unit = ["records", "stored", "", ""][place];
    row.append(cell);
  });
  return row;
}

function choose(name) {
  chosen = name;
  for (const each of document.querySelectorAll("td button"))
    each.setAttribute("aria-pressed", String(each.textContent === name));
}

async function valuesOf(name) {
  const {status, body} = await ask("/v1/streams/" + encodeURIComponent(name) + "/offsets");
  const why = status === 200 ? "" : body.code ?? String(status);
  return status === 200 ? cells(body) : [["–", why], ["–", why], ["–", why], ["–", why]];
}

async function showStreams() {
  if (loading === turn || (asked && key === null)) return;
  const mine = loading = turn;
  try {
    await listStreams(mine);
  } catch {
    if (mine === turn) say("fault", "The server does not answer.");
  } finally {
    if (loading === mine) loading = null;
  }
}

function say(id, text) {
  by(id).textContent = text;
  show(id, text !== "");
}

async function listStreams(mine) {
  const {status, body} = await ask("/v1/streams?limit=" + wanted);
  if (mine !== turn) return;
  say("fault", "");
  if (status === 401) return askForKey();
  show("key-form", false);
  show("key-given", key !== null);
  if (status !== 200) {
    say("fault", status === 403
      ? "This key may not list streams; it needs the scope describe."
      : (body.detail ?? "the list was not answered") + " (" + (body.code ?? status) + ")");
    return;
  }
  const names = body.items.map(item => item.name);
  const values = new Array(names.length);
  let next = 0;
  const work = async () => {
    for (let at = next++; at < names.length && mine === turn; at = next++)
      values[at] = await valuesOf(names[at]);
  };
  await Promise.all(Array.from({length: AT_ONCE}, work));
  if (mine !== turn) return;
  const focused = document.activeElement?.closest?.("td") ? document.activeElement.textContent : null;
  by("rows").replaceChildren(...names.map((name, at) => rowOf(name, values[at])));
  for (const each of document.querySelectorAll("td button"))
    if (each.textContent === focused) each.focus();
  by("count").textContent = names.length + (body.next_page_token === null ? "" : " and more");
  const damaged = (body.unreadable ?? []).map(each => each.name + " (" + each.code + ")");
  say("unreadable", damaged.length === 0 ? "" : "Cannot be read, and not in this list: " + damaged.join(", "));
  show("list", names.length > 0);
  show("empty", names.length === 0 && damaged.length === 0);
  if (key !== null) by("empty").textContent = "There is no stream that this key may describe.";
  show("more", body.next_page_token !== null && wanted < SHOWN_MAX);
  if (chosen === null && names.length > 0) {
    choose(names[0]);
    showLines();
  }
  if (names.length > 0) showPlaces();
  else show("places", false);
}

async function showPlaces() {
  const [mine, name] = [turn, chosen];
  if (name === null) return;
  const path = "/v1/streams/" + encodeURIComponent(name);
  const answers = await Promise.all(["", "/tiers", "/replicas"].map(end => ask(path + end))).catch(() => null);
  if (mine !== turn || name !== chosen) return;
  const known = answers !== null && answers.every(answer => answer.status === 200);
  show("places", known);
  if (!known) return;
  const [stream, tiers, replicas] = answers.map(answer => answer.body);
  by("places-name").textContent = name;
  by("drives").replaceChildren(...drivesOf(tiers));
  show("held", stream.profile !== "leaderless");
  by("nodes").replaceChildren(...nodesOf(replicas));
}

function item(head, ...rest) {
  const made = document.createElement("li");
  made.append(element("code", head, {}), ...rest);
  return made;
}

const quiet = text => element("span", text, {className: "quiet"});
const fault = text => element("span", text, {className: "fault"});
const counted = (count, what) => count.toLocaleString("en") + " " + what + (count === 1 ? "" : "s");

function drivesOf(tiers) {
  const total = tiers.drives.reduce((sum, drive) => sum + drive.bytes, tiers.several.bytes);
  const bar = bytes => Object.assign(document.createElement("meter"), {max: Math.max(total, 1), value: bytes});
  const line = (head, sums, more) =>
    item(head, bar(sums.bytes), quiet(bytes(sums.bytes) + ", " + counted(sums.records, "record") + more));
  const lines = tiers.drives.map(drive => line(
    drive.drive ?? "drive " + drive.number, drive,
    drive.last_timestamp === null ? "" : ", the newest of them " + age(drive.last_timestamp)));
  if (tiers.several.fragments > 0) lines.push(line("several drives", tiers.several, ""));
  const range = one => "offsets " + one.from_offset + " to " + one.to_offset;
  for (const move of tiers.moves)
    lines.push(item(move.to_drive ?? "?", quiet(range(move) + " are on their way here from " + (move.from_drive ?? "?"))));
  for (const one of tiers.damaged)
    lines.push(item(one.drive ?? "?", fault(range(one) + " are damaged here, and were not moved")));
  return lines.length > 0 ? lines : [element("li", "Nothing yet.", {className: "quiet"})];
}

const ROLES = {owner: "owns it", "in-sync": "in sync", "catching-up": "catching up", away: "away"};

function nodesOf(replicas) {
  const lines = replicas.nodes.map(node => {
    const zone = node.zone ? ", zone " + node.zone : "";
    const end = node.next_offset === null ? "" : ", up to offset " + node.next_offset.toLocaleString("en");
    const lag = node.lag ? ", lacks " + counted(node.lag, "record") : "";
    const made = item(node.node, quiet(ROLES[node.role] + zone + end + lag));
    if (node.failing) made.append(fault("its disk takes nothing"));
    if (node.stalled) made.append(fault("does not catch up"));
    return made;
  });
  if (lines.length === 0)
    return [element("li", "On no node now: one is chosen with the next append.", {className: "quiet"})];
  if (lines.length < replicas.replicas) {
    const few = document.createElement("li");
    few.append(fault(lines.length + " of " + replicas.replicas + " nodes hold it"));
    lines.push(few);
  }
  return lines;
}

function askForKey() {
  if (key !== null) say("key-fault", "This key is not good, or not any more.");
  forget();
  asked = true;
  show("key-form", true);
  show("token-note", true);
  showLines();
}

function forget() {
  turn += 1;
  key = null;
  by("key").value = "";
  by("rows").replaceChildren();
  by("count").textContent = "";
  [chosen, picked] = [null, false];
  for (const id of ["list", "places", "empty", "more", "key-given", "fault", "unreadable"]) show(id, false);
}

function showLines() {
  const stream = location.origin + "/v1/streams/" + (chosen ?? "orders");
  // What removes data names no stream that nobody has chosen.
  const named = location.origin + "/v1/streams/" + (picked ? chosen : "NAME");
  const who = asked ? ' -H "Authorization: Bearer $BOTTOMLESS_TOKEN"' : "";
  const json = " \\\n  -H 'Content-Type: application/json' -d ";
  const queue = location.origin + "/v1/queues/jobs";
  const lines = [
    ["Create a stream", `curl -X PUT ${stream}${who}`],
    ["Append records", `curl ${stream}/records${who}${json}'{"records": [{"json": {"id": 7, "total": 12.5}, "key": "cust-9"}, {"value": "hello"}]}'`],
    ["Read records, from the first", `curl '${stream}/records?offset=first'${who}`],
    ["Read the last ten, or what came within the last hour", `curl '${stream}/records?offset=tail:10'${who}\ncurl '${stream}/records?offset=interval:1h'${who}`],
    ["Follow: see records as they are appended", `curl -N '${stream}/records?offset=next&follow=true' -H 'Accept: application/x-ndjson'${who}`],
    ["Take up to 16 MB of records as Arrow, for pandas, Polars or DuckDB", `curl '${stream}/records?offset=first&max_bytes=16777216' -H 'Accept: application/vnd.apache.arrow.stream' -o records.arrows${who}`],
    ["Remember how far a consumer has come, and go on from there", `curl -X PUT ${stream}/consumers/billing/offset${who}${json}'{"next_offset": 1}'\ncurl '${stream}/records?offset=stored&consumer=billing'${who}`],
    ["See where a stream begins and ends, and how it is configured", `curl ${stream}/offsets${who}\ncurl ${stream}${who}`],
    ["See on which drives its bytes lie, and which nodes hold what is newest", `curl ${stream}/tiers${who}\ncurl ${stream}/replicas${who}`],
    ["Have three nodes hold what is not in object storage yet, where there are three", `curl -X PATCH ${named} -H 'If-Match: *'${who}${json}'{"replication": {"replicas": 3}}'`],
    ["Keep a week, and at most 20 GB", `curl -X PATCH ${named} -H 'If-Match: *'${who}${json}'{"retention": {"max_age": "7D", "max_bytes": 20000000000}}'`],
    ["List the streams", `curl ${location.origin}/v1/streams${who}`],
    ["Delete a stream, with all its records", `curl -X DELETE ${named}${who}`],
    ["Create a queue, whose messages each go to one consumer, and publish to it", `curl -X PUT ${queue}${who}\ncurl ${queue}/messages${who}${json}'{"messages": [{"json": {"invoice": 7}}, {"value": "hello"}]}'`],
    ["Receive a message, and acknowledge it by its receipt", `curl ${queue}/receive${who}${json}'{"limit": 1, "max_wait_ms": 10000}'\ncurl ${queue}/ack${who}${json}'{"receipts": ["RECEIPT"]}'`],
    ["List the queues, and what is in them", `curl ${location.origin}/v1/queues${who}`],
  ];
  by("lines").replaceChildren(...lines.map(([title, line]) => {
    const item = document.createElement("li"), head = element("div", null, {className: "line"});
    const copy = element("button", "Copy", {type: "button", className: "copy"});
    copy.setAttribute("aria-label", "Copy: " + title);
    copy.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(line); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(item.lastChild); copy.textContent = "Selected"; }
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    head.append(element("span", title, {}), copy);
    item.append(head, element("pre", line, {}));
    return item;
  }));
}

by("key-form").addEventListener("submit", event => {
  event.preventDefault();
  const given = by("key").value.trim();
  by("key").value = "";
  // A browser sends no other letters in a header, and would seem to meet no server.
  if (!/^[!-~]+$/.test(given)) return say("key-fault", "A key has letters, digits and signs of ASCII alone.");
  turn += 1;
  key = given;
  say("key-fault", "");
  showStreams();
});
by("forget").addEventListener("click", () => { forget(); askForKey(); });
by("more").addEventListener("click", () => { wanted = Math.min(SHOWN_MAX, wanted + PAGE); showStreams(); });
fetch("/docs", {method: "HEAD"}).then(answer => {
  for (const id of ["docs-first", "docs-link"]) show(id, answer.ok);
}, () => {});
const refresh = () => {
  if (document.hidden) return;
  showHealth();
  // A long list is asked for by hand alone: it costs a request for each stream.
  if (wanted === PAGE) showStreams();
};
showLines();
refresh();
setInterval(refresh, EVERY_MS);
