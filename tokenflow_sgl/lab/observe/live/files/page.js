// Fetches the page again and puts in the parts that have changed.
const every = 1000 * document.body.dataset.interval;
const put = (old, fresh) => {
  if (old.innerHTML !== fresh.innerHTML) old.innerHTML = fresh.innerHTML;
  old.className = fresh.className;
};

async function renew() {
  const lost = document.getElementById("lost");
  try {
    const answer = await fetch("/", { signal: AbortSignal.timeout(10000 + every) });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = fresh.title;
    for (const part of document.querySelectorAll("[data-part]")) put(part, fresh.getElementById(part.id));
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
  setTimeout(renew, every);
}
setTimeout(renew, every);
