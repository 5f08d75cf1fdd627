// The page at `/`: "Forget it" while the list is on its way. A DOM of a few lines; the script is the page's own.
import {readFileSync} from "node:fs";
const make = name => { const listeners = {}; return {name, hidden: false, textContent: "", value: "", className: "", dataset: {}, children: [], firstChild: null,
  addEventListener: (k, f) => { listeners[k] = f; }, fire: (k, e) => listeners[k]?.(e ?? {preventDefault() {}}), setAttribute() {}, focus() {}, closest: () => null,
  append(...c) { this.children.push(...c); this.firstChild ??= c[0]; this.lastChild = c.at(-1); }, replaceChildren(...c) { this.children = c; }}; };
const nodes = {}; const pending = [];
globalThis.document = {getElementById: id => nodes[id] ??= Object.assign(make(id), {hidden: ["key-form", "key-given", "fault", "empty", "list", "more", "token-note", "key-fault"].includes(id)}), createElement: make, querySelectorAll: () => [], activeElement: null, hidden: false};
globalThis.location = {origin: "http://x"}; globalThis.setInterval = () => {};
const answer = (status, body) => ({status, ok: status === 200, json: async () => body});
globalThis.fetch = (path, options) => new Promise(done => {
  const who = options?.headers?.Authorization;
  if (path === "/readyz" || path === "/docs") return done(answer(200, {}));
  const result = !who ? answer(401, {code: "unauthenticated"}) : path.startsWith("/v1/streams?") ? answer(200, {items: [{name: "secret-project"}, {name: "payroll"}], next_page_token: null})
    : answer(200, {next_offset: 3, first_offset: 0, size_bytes: 1, first_timestamp: null, last_timestamp: null});
  pending.push([path, () => done(result)]);
});
const tick = () => new Promise(r => setTimeout(r, 5));
const flush = async n => { await tick(); for (let i = 0; i < n && pending.length; i++) { pending.shift()[1](); await tick(); } };
(0, eval)(readFileSync(process.argv[2], "utf8"));
await flush(1);                                    // 401: the page asks for a key
const $ = id => nodes[id];
for (const when of [0, 1]) {
  $("key").value = "sk_abc"; $("key-form").fire("submit"); await tick();
  await flush(when);                               // 1: the list has come, its values have not
  $("forget").fire("click"); await flush(99);      // "Forget it", then what was on its way arrives
  console.log(when === 0 ? "forgotten while the list is asked for:" : "forgotten while the values are asked for:",
    {rows: $("rows").children.map(r => r.firstChild.firstChild.textContent), listShown: !$("list").hidden, keyFormShown: !$("key-form").hidden, keyGivenShown: !$("key-given").hidden});
}
