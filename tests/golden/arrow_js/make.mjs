// Writes the Arrow bodies of this folder with the library of JavaScript, as an application would:
//
//     npm install apache-arrow@21.2.0 && node make.mjs
//
// They are checked in, since nothing else of the tests needs node: test_arrow_writers.py reads them.
import { writeFileSync } from "node:fs";
import {
  Binary, Field, Int64, Map_, Struct, Table, TimestampMillisecond, Uint8, Utf8,
  tableFromArrays, tableFromJSON, tableToIPC, vectorFromArray,
} from "apache-arrow";

const rows = [...Array(5).keys()];
const bytes = (text) => new TextEncoder().encode(text);

function write(name, table) {
  const body = tableToIPC(table, "stream");
  let text = "";
  for (let at = 0; at < body.length; at += 16) {
    const part = [...body.slice(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    text += `${hex.padEnd(47)}  # ${at.toString(16).padStart(4, "0")} |${ascii}|\n`;
  }
  writeFileSync(`${name}.hex`, text);
}

const texts = vectorFromArray(rows.map((row) => `é${row}`), new Utf8());
const values = vectorFromArray(rows.map((row) => bytes("v" + "x".repeat(row))), new Binary());
const pair = new Struct([new Field("key", new Utf8(), false), new Field("value", new Utf8(), true)]);

write("text", new Table({ value: texts }));
write("bytes", new Table({ value: values }));
write("two_batches", new Table({ value: texts }).concat(new Table({ value: texts })));
write("arrays", tableFromArrays({ value: rows.map((row) => `value ${row}`), key: rows.map((row) => `k${row % 2}`) }));
write("json", tableFromJSON(rows.map((row) => ({ value: `v${row}`, filter_value: "f" }))));
write("all_columns", new Table({
  value: values,
  key: vectorFromArray(rows.map((row) => (row % 2 ? bytes(`k${row}`) : null)), new Binary()),
  headers: vectorFromArray(rows.map((row) => new Map([["name", `h${row}`]])), new Map_(new Field("entries", pair, false))),
  event_time: vectorFromArray(rows.map((row) => (row % 3 ? 1700000000000 + row : null)), new TimestampMillisecond("UTC")),
  content: vectorFromArray(rows.map(() => 0), new Uint8()),
  filter_value: vectorFromArray(rows.map((row) => (row % 2 ? `f${row}` : null)), new Utf8()),
}));
write("numbered", new Table({
  value: values,
  publishing_id: vectorFromArray(rows.map((row) => BigInt(row + 7)), new Int64()),
}));
