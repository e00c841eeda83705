// Words at the pointer, and one upright line through everything that shares the axis of time.
for (const title of document.querySelectorAll("svg title")) {
  title.parentNode.dataset.words = title.textContent;
  title.remove();
}
const tip = document.getElementById("tip"), hairs = document.querySelectorAll(".hair");
const clock = s => s < 1 ? (s * 1e3).toFixed(1) + " ms" : s <= 300 ? s.toFixed(2) + " s"
  : Math.floor(s / 60) + " min " + (s % 60).toFixed(1) + " s";
document.addEventListener("pointermove", event => {
  const drawing = event.target.closest("svg.time"), marked = event.target.closest("[data-words]");
  let words = marked ? marked.dataset.words : "", hair = null;
  if (drawing) {
    const box = drawing.getBoundingClientRect(), left = +drawing.dataset.left, right = +drawing.dataset.right;
    const x = (event.clientX - box.left) * drawing.viewBox.baseVal.width / box.width;
    if (x >= left && x <= right) {
      hair = x;
      words = clock((x - left) / (right - left) * drawing.dataset.extent / 1e9) + (words ? "\n" + words : "");
    }
  }
  for (const line of hairs) {
    line.style.visibility = hair === null ? "hidden" : "visible";
    if (hair !== null) { line.setAttribute("x1", hair); line.setAttribute("x2", hair); }
  }
  tip.hidden = !words;
  tip.textContent = words;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(x, 4)}px, ${Math.max(y, 4)}px)`;
});
