
const box = document.getElementById("search");
if (box) box.addEventListener("input", () => {
  const want = box.value.trim().toLowerCase();
  for (const each of document.querySelectorAll("[data-name]:not(.topic)"))
    each.hidden = !each.dataset.name.includes(want);
  let count = 0;
  for (const topic of document.querySelectorAll(".topic")) {
    let here = 0;
    for (const queue of topic.querySelectorAll(".q")) {
      queue.hidden = !`${topic.dataset.name}/${queue.textContent}`.includes(want);
      here += !queue.hidden;
    }
    topic.hidden = !here;
    count += here;
  }
  const found = count === 1 ? "1 queue is called so" : `${count} queues are called so`;
  document.getElementById("found").textContent = want ? found : "";
});
