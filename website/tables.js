// Long tables of the docs site get a field: rows without all of its words are hidden.
// Where no JavaScript runs the whole table is there.
"use strict";

const LONG = 8; // rows from which on a table has a field

function words(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function addField(table) {
  const rows = [...(table.tBodies[0]?.rows ?? [])];
  if (rows.length < LONG) return;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `Filter ${rows.length} rows, as: ${words(rows[0].cells[0].textContent)[0] ?? ""}`;
  field.ariaLabel = "Show only rows that have these words";
  const told = document.createElement("output");
  const bar = document.createElement("div");
  bar.className = "table-filter";
  bar.append(field, told);
  table.before(bar);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const wanted = words(field.value);
    let shown = 0;
    rows.forEach((row, number) => {
      row.hidden = !wanted.every((word) => texts[number].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    told.value = wanted.length ? `${shown} of ${rows.length}` : "";
  });
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("article table").forEach(addField);
});
