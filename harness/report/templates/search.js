const box = document.querySelector("#search"), runs = document.querySelector("#run"), verdicts = document.querySelector("#verdict");
const episodes = [...document.querySelectorAll("details.episode")];

function find() {
  const text = box.value.toLowerCase();
  let found = 0;
  for (const episode of episodes) {
    const run = !runs.value || episode.parentElement.id === runs.value;
    const verdict = !verdicts.value || episode.dataset.verdict === verdicts.value;
    episode.hidden = !(run && verdict && (!text || episode.textContent.toLowerCase().includes(text)));
    found += !episode.hidden;
  }
  for (const section of document.querySelectorAll("section")) section.hidden = !section.querySelector(".episode:not([hidden])");
  document.querySelector("#count").textContent = `${found} of ${episodes.length} episodes`;
}

function open() {
  const named = document.getElementById(location.hash.slice(1));
  if (named?.matches(".episode")) named.open = true;
  named?.scrollIntoView();
}

document.querySelector("form").addEventListener("input", find);
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", open);
find();
open();
