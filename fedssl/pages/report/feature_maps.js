// Two maps of the test images, before and after training: points by class, client or outcome.
// Pointing at an image shows it in both maps.
"use strict";

const SHAPES = ["circle", "square", "triangle", "diamond", "down", "plus", "cross"];
const RADIUS = 3.2;
const PICK_DISTANCE = 14; // pixels from the pointer to an image
const FADED = 0.12;
const MAX_LEGEND = 42;

// Add the outline of a point of some shape to the path of a context.
function tracePoint(context, shape, x, y, r) {
  if (shape === "circle") {
    context.moveTo(x + r, y);
    context.arc(x, y, r, 0, 2 * Math.PI);
    return;
  }
  const outlines = {
    square: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    triangle: [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
    down: [[0, 1.2], [1.1, -0.9], [-1.1, -0.9]],
    diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
    plus: [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4],
      [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
    cross: [[-1.2, -0.7], [-0.7, -1.2], [0, -0.5], [0.7, -1.2], [1.2, -0.7], [0.5, 0],
      [1.2, 0.7], [0.7, 1.2], [0, 0.5], [-0.7, 1.2], [-1.2, 0.7], [-0.5, 0]],
  };
  outlines[shape].forEach(([dx, dy], number) => {
    const move = number === 0 ? "moveTo" : "lineTo";
    context[move](x + dx * r, y + dy * r);
  });
  context.closePath();
}

// Draw a point of a kind. Kinds have seven colours and shapes; every second seven are hollow.
function drawPoint(context, kind, x, y, r) {
  const repetition = Math.floor(kind / 7);
  context.beginPath();
  tracePoint(context, SHAPES[(kind + repetition) % 7], x, y, r);
  if (repetition % 2 === 0) {
    context.fillStyle = seriesColour(kind);
    context.fill();
  } else {
    context.strokeStyle = seriesColour(kind);
    context.lineWidth = 1.3;
    context.stroke();
  }
}

// The kinds of points for each choice of colours, with their names.
function pointKinds(data, choice) {
  if (choice === "client") {
    return { kinds: data.labels.map((label) => data.owners[label]), names: data.clients };
  }
  if (choice === "correct") {
    const kinds = data.correct.map((share) => (share >= 0.5 ? 0 : 1));
    return { kinds, names: ["classified correctly", "classified wrongly"] };
  }
  return { kinds: data.labels, names: data.classes };
}

class FeatureMaps {
  constructor(data) {
    this.data = data;
    this.choice = "class";
    this.chosenKind = null; // that the legend highlights
    this.image = null; // under the pointer
    this.legend = document.querySelector("[data-map-legend]");
    this.status = document.querySelector("[data-map-status]");
    this.canvases = [...document.querySelectorAll("[data-map]")];
    this.tooltip = document.createElement("div");
    this.tooltip.className = "map-tooltip";
    document.body.append(this.tooltip);
    for (const canvas of this.canvases) {
      this.listen(canvas);
    }
    for (const button of document.querySelectorAll("[data-colour]")) {
      button.addEventListener("click", () => this.choose(button.dataset.colour));
    }
    new ResizeObserver(() => this.draw()).observe(this.canvases[0]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.refresh());
    this.refresh();
  }

  listen(canvas) {
    canvas.addEventListener("pointermove", (event) => this.point(canvas, event));
    canvas.addEventListener("pointerdown", (event) => this.point(canvas, event));
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") {
        this.select(null); // a finger leaves after each touch
      }
    });
    canvas.addEventListener("blur", () => this.select(null));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const count = this.data.labels.length;
        this.select(((this.image ?? -step) + step + count) % count, canvas);
      }
    });
  }

  choose(choice) {
    this.choice = choice;
    this.chosenKind = null;
    for (const button of document.querySelectorAll("[data-colour]")) {
      button.setAttribute("aria-pressed", String(button.dataset.colour === choice));
    }
    this.refresh();
  }

  refresh() {
    const { kinds, names } = pointKinds(this.data, this.choice);
    this.kinds = kinds;
    this.names = names;
    this.fillLegend();
    this.draw();
  }

  fillLegend() {
    const present = [...new Set(this.kinds)].sort((one, other) => one - other);
    this.legend.replaceChildren();
    if (present.length > MAX_LEGEND) {
      this.legend.textContent = `${present.length} classes: point at an image to see its class`;
      return;
    }
    for (const kind of present) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      const mark = document.createElement("canvas");
      this.drawMark(mark, kind);
      button.append(mark, this.names[kind]);
      button.addEventListener("click", () => this.highlight(kind));
      button.dataset.kind = kind;
      const item = document.createElement("li");
      item.append(button);
      this.legend.append(item);
    }
  }

  drawMark(canvas, kind) {
    canvas.width = 28;
    canvas.height = 28;
    canvas.className = "map-mark";
    canvas.setAttribute("aria-hidden", "true");
    drawPoint(canvas.getContext("2d"), kind, 14, 14, 9);
  }

  highlight(kind) {
    this.chosenKind = this.chosenKind === kind ? null : kind;
    for (const button of this.legend.querySelectorAll("button")) {
      const pressed = Number(button.dataset.kind) === this.chosenKind;
      button.setAttribute("aria-pressed", String(pressed));
    }
    this.draw();
  }

  // Return the position of an image on a canvas, in its CSS pixels.
  place(canvas, image) {
    const positions = this.data[canvas.dataset.map];
    const margin = 10;
    const size = canvas.clientWidth - 2 * margin;
    return [
      margin + (positions[2 * image] / 1000) * size,
      margin + (1 - positions[2 * image + 1] / 1000) * size,
    ];
  }

  draw() {
    for (const canvas of this.canvases) {
      const ratio = window.devicePixelRatio || 1;
      const side = canvas.clientWidth;
      canvas.width = side * ratio;
      canvas.height = side * ratio;
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      this.kinds.forEach((kind, image) => {
        const [x, y] = this.place(canvas, image);
        const faded = this.chosenKind !== null && kind !== this.chosenKind;
        context.globalAlpha = faded ? FADED : 0.85;
        drawPoint(context, kind, x, y, RADIUS);
      });
      context.globalAlpha = 1;
      if (this.image !== null) {
        this.ring(context, ...this.place(canvas, this.image));
      }
      canvas.dataset.drawn = this.choice;
    }
  }

  ring(context, x, y) {
    context.beginPath();
    context.arc(x, y, 8, 0, 2 * Math.PI);
    context.strokeStyle = cssColour("--text");
    context.lineWidth = 2;
    context.stroke();
  }

  point(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const at = [event.clientX - box.left, event.clientY - box.top];
    let nearest = null;
    let least = PICK_DISTANCE ** 2;
    for (let image = 0; image < this.kinds.length; image += 1) {
      const [x, y] = this.place(canvas, image);
      const distance = (x - at[0]) ** 2 + (y - at[1]) ** 2;
      if (distance < least) {
        nearest = image;
        least = distance;
      }
    }
    this.select(nearest, canvas);
  }

  select(image, canvas) {
    if (image === this.image) {
      return;
    }
    this.image = image;
    this.draw();
    this.tooltip.classList.toggle("shown", image !== null);
    if (image === null) {
      return;
    }
    const text = this.describe(image);
    this.status.textContent = text;
    this.fillTooltip(image, text);
    const [x, y] = this.place(canvas, image);
    const box = canvas.getBoundingClientRect();
    const left = Math.min(box.left + x + 14, window.innerWidth - this.tooltip.offsetWidth - 8);
    this.tooltip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    this.tooltip.style.top = `${box.top + y + 14 + window.scrollY}px`;
  }

  describe(image) {
    const label = this.data.labels[image];
    let text = `test image ${image}: ${this.data.classes[label]}`;
    if (this.data.correct) {
      text += this.data.correct[image] >= 0.5 ? ", classified correctly" : ", classified wrongly";
    }
    return text;
  }

  fillTooltip(image, text) {
    this.tooltip.replaceChildren();
    const sheet = this.data.sheet;
    if (sheet) {
      const scale = 64 / Math.max(sheet.width, sheet.height);
      const picture = document.createElement("div");
      picture.className = "map-picture";
      const column = image % sheet.columns;
      const row = Math.floor(image / sheet.columns);
      Object.assign(picture.style, {
        width: `${sheet.width * scale}px`,
        height: `${sheet.height * scale}px`,
        backgroundImage: `url(${sheet.src})`,
        backgroundSize: `${sheet.width * sheet.columns * scale}px auto`,
        backgroundPosition: `${-column * sheet.width * scale}px ${-row * sheet.height * scale}px`,
      });
      this.tooltip.append(picture);
    }
    this.tooltip.append(text);
  }
}
