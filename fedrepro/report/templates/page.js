const form = document.getElementById("filter");
form.hidden = false;
form.addEventListener("change", () => {
  const { paper, word, scale } = form.elements;
  let shown = 0;
  for (const item of document.querySelectorAll(".filtered")) {
    const { paper: own, scale: at, words } = item.dataset;
    const wanted = (!paper.value || own === paper.value) && (!scale.value || at === scale.value)
      && (!word.value || words.split("|").includes(word.value));
    item.hidden = !wanted;
    shown += wanted && item.tagName === "ARTICLE";
  }
  form.querySelector("output").textContent = shown + (shown === 1 ? " item" : " items");
});
