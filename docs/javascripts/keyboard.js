"use strict";
// What is wider than the page is scrolled with the keyboard, too, and each copy button has a name.
const reach = () => {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  document.querySelectorAll(".md-code__nav").forEach((nav, k) => {
    nav.setAttribute("aria-label", `Code ${k + 1}`);
  });
};
addEventListener("load", reach);
addEventListener("resize", reach);
