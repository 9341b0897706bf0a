// Draws the Mermaid diagrams of a page, with the script that the site ships, again when the colours change.
(function () {
  const sources = [];
  const blocks = [...document.querySelectorAll("pre.diagram")].map((source) => {
    const block = document.createElement("div");
    block.className = "diagram";
    sources.push(source.textContent);
    source.replaceWith(block);
    return block;
  });
  if (!blocks.length) return;
  const scheme = () => document.body.getAttribute("data-md-color-scheme");

  async function draw() {
    const dark = scheme() === "slate";
    window.mermaid.initialize({
      startOnLoad: false,
      securityLevel: "strict",
      theme: dark ? "dark" : "neutral",
      fontFamily: getComputedStyle(document.body).fontFamily,
      sequence: { mirrorActors: false, useMaxWidth: true },
    });
    for (const [index, block] of blocks.entries()) {
      block.innerHTML = (await window.mermaid.render(`diagram-${index}`, sources[index])).svg;
      const drawing = block.querySelector("svg");
      drawing.style.minWidth = `${0.45 * drawing.viewBox.baseVal.width}px`; // smaller text cannot be read: scroll instead
    }
  }

  const script = document.createElement("script");
  script.src = new URL("mermaid.min.js", document.currentScript.src);
  script.onload = () => {
    draw();
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  };
  document.head.append(script);
})();
