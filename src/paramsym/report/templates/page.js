"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const rows = all("#spaces tr[data-space]");
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

  for (const row of rows.filter((r) => r.dataset.command)) {
    const button = make("button", { type: "button", className: "copy", textContent: "Copy command" });
    button.title = row.dataset.command;
    button.setAttribute("aria-label", `Copy the command that moves ${row.dataset.space} alone`);
    button.addEventListener("click", async () => {
      let said = "Copied";
      try {
        await navigator.clipboard.writeText(row.dataset.command);
      } catch {
        said = row.dataset.command;
      }
      button.textContent = said;
      setTimeout(() => (button.textContent = "Copy command"), said === "Copied" ? 1500 : 15000);
    });
    row.lastElementChild.append(button);
  }

  const tools = document.getElementById("tools");
  if (tools && rows.length > 5) {
    const label = make("label", { textContent: "Show rows with " });
    const field = make("input", { type: "search", name: "filter" });
    const told = make("span", { className: "muted" });
    told.setAttribute("role", "status");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let seen = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        seen += !row.hidden;
      }
      told.textContent = words.length ? ` ${seen} of ${rows.length}` : "";
    });
    label.append(field);
    tools.append(label, told);
  }

  const lanes = all("#network [data-space]");
  const light = (name, on) => {
    for (const one of [...lanes, ...rows].filter((e) => e.dataset.space === name)) {
      one.classList.toggle("lit", on);
    }
  };
  for (const one of [...lanes, ...rows]) {
    one.addEventListener("mouseenter", () => light(one.dataset.space, true));
    one.addEventListener("mouseleave", () => light(one.dataset.space, false));
  }
})();
