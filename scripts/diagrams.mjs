// Draws the diagrams of docs/diagrams.
//
//   npm run diagrams                      writes them
//   node scripts/diagrams.mjs --check     fails where a file differs
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const folder = join(import.meta.dirname, '..', 'docs', 'diagrams');
const SIZE = 13;
const LINE = 18;
const PAD = 10;
const INK = '#1f2328';
const GREY = '#656d76';
const COLORS = {
  blue: ['#eaf2fb', '#4c78a8'],
  green: ['#e9f5ea', '#4f9d52'],
  amber: ['#fdf3e1', '#d08a1d'],
  grey: ['#f3f4f6', '#9aa1a9'],
  white: ['#ffffff', '#9aa1a9'],
};

const escaped = (text) =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

/** Upper bound of a line's width: DejaVu Sans, the widest of the fonts, and its monospace. */
function widthOf(line, size = SIZE) {
  let width = 0;
  for (const [i, part] of line.split('`').entries()) {
    const narrow = part.match(/[ ,.:;'|()[\]ijlIft]/g)?.length ?? 0;
    const code = i % 2 === 1;
    width += size * (code ? 0.54 * part.length : 0.62 * (part.length - narrow) + 0.35 * narrow);
  }
  return width;
}

/** One picture: shapes are drawn in the order of the calls, coordinates are pixels. */
class Picture {
  shapes = [];

  constructor(width, height, title, description) {
    Object.assign(this, { width, height, title, description });
  }

  /** `code` in backquotes is monospace; "*" before a line makes it bold. */
  text(x, y, line, { anchor = 'start', size = SIZE, fill = INK, within = Infinity } = {}) {
    const bold = line.startsWith('*');
    const words = bold ? line.slice(1) : line;
    const wide = widthOf(words, size) * (bold ? 1.13 : 1);
    const left = { start: x, middle: x - wide / 2, end: x - wide }[anchor];
    if (wide > within || left < 0 || left + wide > this.width)
      throw new Error(`${this.title}: expected a line that fits, got "${line}"; make it shorter`);
    const parts = words.split('`').map((part, i) => {
      const span = `<tspan font-family="DejaVu Sans Mono, Menlo, monospace" font-size="${size - 1.5}">`;
      return i % 2 === 1 ? `${span}${escaped(part)}</tspan>` : escaped(part);
    });
    const looks = [
      anchor === 'start' ? '' : ` text-anchor="${anchor}"`,
      size === SIZE ? '' : ` font-size="${size}"`,
      fill === INK ? '' : ` fill="${fill}"`,
      bold ? ' font-weight="bold"' : '',
    ].join('');
    this.shapes.push(`<text x="${x}" y="${y}"${looks}>${parts.join('')}</text>`);
  }

  /** A box with lines of text, centered between its upper and lower edges. */
  box([x, y, width, height], color, lines, { align = 'start', size = SIZE, dashed = false } = {}) {
    const [fill, stroke] = COLORS[color];
    const dash = dashed ? ' stroke-dasharray="5 4"' : '';
    this.shapes.push(
      `<rect x="${x}" y="${y}" width="${width}" height="${height}" rx="6" fill="${fill}" stroke="${stroke}"${dash}/>`,
    );
    if (lines.length * LINE > height)
      throw new Error(`${this.title}: expected a box for ${lines.length} lines: "${lines[0]}"`);
    const top = y + (height - lines.length * LINE) / 2 + LINE - 4.5;
    const at = align === 'middle' ? x + width / 2 : x + PAD;
    const within = align === 'middle' ? width - 4 : width - 1.4 * PAD;
    for (const [i, line] of lines.entries())
      this.text(at, top + i * LINE, line, { anchor: align, within, size });
  }

  /** A line along an SVG path; `head` draws a tip at its end, `tail` at its start. */
  arrow(path, { head = true, tail = false, dashed = false } = {}) {
    const ends = `${head ? ' marker-end="url(#tip)"' : ''}${tail ? ' marker-start="url(#tip)"' : ''}`;
    const dash = dashed ? ' stroke-dasharray="4 4"' : '';
    this.shapes.push(
      `<path d="${path}" fill="none" stroke="${GREY}" stroke-width="1.4"${dash}${ends}/>`,
    );
  }

  /** A thin line from edge to edge. */
  rule(y) {
    this.shapes.push(`<path d="M12 ${y}H${this.width - 12}" stroke="#d8dde3"/>`);
  }

  toString() {
    const { width, height, title, description, shapes } = this;
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="${SIZE}" fill="${INK}">`,
      `<title>${escaped(title)}</title>`,
      `<desc>${escaped(description)}</desc>`,
      `<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="${GREY}"/></marker></defs>`,
      `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
      ...shapes,
      '</svg>',
      '',
    ].join('\n');
  }
}

/** Questions from top to bottom: "yes" leads to the answer at the right, "no" to the next one. */
function decisionTree({ title, description, questions, last, notes, jump }) {
  const [left, width, right, gap] = [24, 312, 378, 26];
  const wide = 330;
  const height = ({ ask, answer = [] }) => Math.max(ask.length, answer.length) * LINE + 2 * PAD;
  const tops = [];
  let y = 16;
  for (const question of questions) {
    tops.push(y);
    y += height(question) + gap;
  }
  const end = y;
  y += last.length * LINE + 2 * PAD;
  const picture = new Picture(right + wide + 16, y + 20 + notes.length * LINE, title, description);
  for (const [i, question] of questions.entries()) {
    const { ask, answer } = question;
    const [top, tall] = [tops[i], height(question)];
    const middle = top + tall / 2;
    const next = tops[i + 1] ?? end;
    picture.box([left, top, width, tall], 'blue', ask);
    picture.arrow(`M${left + width / 2} ${top + tall}L${left + width / 2} ${next - 1}`);
    picture.text(left + width / 2 + 8, top + tall + 17, 'no', { fill: GREY });
    if (answer) {
      picture.arrow(`M${left + width} ${middle}L${right - 1} ${middle}`);
      picture.text(left + width + 8, middle - 6, 'yes', { fill: GREY });
      picture.box([right, top, wide, tall], 'green', answer);
    }
    if (jump?.from === i) {
      const to = tops[jump.to] + height(questions[jump.to]) / 2;
      picture.arrow(
        `M${left} ${middle}L${left - 14} ${middle}L${left - 14} ${to}L${left - 1} ${to}`,
      );
      picture.text(left - 10, top + tall + 17, 'yes', { fill: GREY });
    }
  }
  picture.box([left, end, width, last.length * LINE + 2 * PAD], 'green', last);
  for (const [i, note] of notes.entries())
    picture.text(left, y + 20 + i * LINE, note, { fill: GREY });
  return picture;
}

const whichStage = () =>
  decisionTree({
    title: 'Which ZeRO stage, and when to offload',
    description:
      'Take the first that fits: stage 0 or 1 with 16 bytes a parameter, stage 1 with 4 + 12/N, stage 2 with 2 + 14/N, stage 3 with 16/N, then offload of the optimizer, then of the weights, then a disk.',
    questions: [
      {
        ask: ['*Does all of it fit one GPU?', '16 bytes a parameter'],
        answer: ['*stage 0; on several GPUs, stage 1', 'stage 1 moves the same bytes'],
      },
      { ask: ['*Only one GPU?'] },
      {
        ask: ['*Fits with the optimizer state divided?', '4 + 12/N bytes a parameter'],
        answer: ['*stage 1', 'each GPU updates 1/N of the weights'],
      },
      {
        ask: ['*Fits with gradients divided too?', '2 + 14/N bytes a parameter'],
        answer: ['*stage 2', 'moves more only with accumulation'],
      },
      {
        ask: ['*Fits with weights divided too?', '16/N bytes, and the layers in use'],
        answer: ['*stage 3', 'moves half as much again'],
      },
      {
        ask: ['*Do the weights alone fit one GPU?', '2 bytes a parameter'],
        answer: ['*stage 2 with `offload_optimizer`', 'lower `ratio` while GPU memory is free'],
      },
    ],
    jump: { from: 1, to: 5 },
    last: ['*stage 3 with `offload_optimizer`', 'and `offload_param`, if 2/N do not fit'],
    notes: [
      'Add the activations to each number. N GPUs, 16-bit weights, AdamW in fp32.',
      'Offload takes 12 to 18 bytes a parameter of host memory, divided between the machines.',
      'If the host has less, set the device to `nvme`. `ds plan` computes all of this for a model.',
    ],
  });

const whichParallelism = () =>
  decisionTree({
    title: 'Which parallelism',
    description:
      'Take the first that applies: data parallelism, offload, tensor or sequence parallelism, a pipeline; else ZeRO stage 2 or 3.',
    questions: [
      {
        ask: ['*Does the model train on one GPU?'],
        answer: ['*data parallelism, ZeRO stage 0 or 1', 'one reduction a step, during backward'],
      },
      {
        ask: ['*Only one GPU?'],
        answer: ['*offload', 'host memory for state; steps take longer'],
      },
      {
        ask: [
          '*Is one sample too large for a GPU?',
          'activations, or logits of a large vocabulary',
        ],
        answer: [
          '*tensor parallelism with `sequenceParallel`',
          'between the GPUs of one machine; or Ulysses,',
          'if the weights fit',
        ],
      },
      {
        ask: ['*Fewer samples in a batch than GPUs?'],
        answer: ['*pipeline or tensor, beside data', 'a pipeline needs micro-batches instead'],
      },
      {
        ask: ['*Does ZeRO fill the link', '*between machines?'],
        answer: ['*pipeline between machines', 'only activations cross the link'],
      },
    ],
    last: ['*ZeRO stage 2, then stage 3', 'the program stays the same'],
    notes: ['The ways combine: 8 GPUs with 2 stages and `tp: 2` have 2 data ranks.'],
  });

/** Lanes of a timeline: names at the left, bars at their times. */
function lanes(picture, { left, top, row, names }) {
  for (const [i, [name, note]] of names.entries()) {
    const y = top + i * row;
    picture.text(12, y + (note ? row / 2 - 4 : row / 2 + 4), `*${name}`, { size: 12 });
    if (note) picture.text(12, y + row / 2 + 12, note, { size: 11, fill: GREY });
    if (i > 0) picture.rule(y);
  }
  return (lane, [from, to], color, lines) =>
    picture.box([left + from, top + lane * row + 6, to - from, row - 12], color, lines, {
      align: 'middle',
      size: 12,
    });
}

function offloadStep() {
  const picture = new Picture(
    740,
    372,
    'A step with the optimizer state in host memory',
    'During backward, gradients leave for the host, and CPU threads compute weights of the next step. At step() the gradient norm is known. Weights go to the GPU in the order of the next forward, which waits for the weights of one layer only.',
  );
  const [left, top, row] = [136, 44, 54];
  const bar = lanes(picture, {
    left,
    top,
    row,
    names: [
      ['GPU: compute', ''],
      ['GPU to host', 'PCIe'],
      ['CPU threads', 'AdamW'],
      ['GPU: update', 'of `gpu_share`'],
      ['host to GPU', 'PCIe'],
    ],
  });
  const [forward, step, end] = [110, 340, 592];
  bar(0, [0, forward - 3], 'blue', ['forward']);
  bar(0, [forward, step - 4], 'blue', ['backward', 'last layer first']);
  bar(0, [step + 62, end], 'blue', ['next forward', 'first layer first']);
  bar(1, [forward + 26, step - 4], 'grey', ['gradients, layer by layer']);
  bar(2, [forward + 46, step - 4], 'green', ['speculative updates', 'of about half the layers']);
  bar(2, [step + 4, end - 96], 'green', ['the other layers,', 'in forward order']);
  bar(3, [forward + 30, step - 4], 'amber', ['state streams through the', 'GPU, tile by tile']);
  bar(3, [step + 4, end - 40], 'amber', ['the other layers,', 'in forward order']);
  bar(4, [step + 22, end - 70], 'grey', ['new weights, by layer']);
  picture.arrow(`M${left + step} 30L${left + step} ${top + 5 * row + 4}`, {
    head: false,
    dashed: true,
  });
  picture.text(left + step, 22, '`engine.step()`: the gradient norm is known', {
    anchor: 'middle',
  });
  const notes = [
    'If the step is clipped or skipped, its weights are computed again from the unchanged state.',
    'The next forward waits for the weights of its next layer only.',
  ];
  for (const [i, note] of notes.entries())
    picture.text(12, top + 5 * row + 28 + i * LINE, note, { fill: GREY });
  return picture;
}

function inferenceStep() {
  const picture = new Picture(
    740,
    454,
    'An inference step',
    'The scheduler fills a step with one token of each running sequence and with parts of prompts. The GPU computes one forward pass and samples. The host reads the tokens while the next step runs.',
  );
  const [a, b, c] = [16, 262, 508];
  picture.text(16, 24, '*host');
  picture.box([a, 36, 176, 56], 'grey', ['*requests', 'wait in order of arrival']);
  picture.box([b, 36, 200, 92], 'blue', [
    '*scheduler',
    '1. running sequences,',
    'one token each',
    '2. parts of prompts',
  ]);
  picture.box([c, 36, 216, 92], 'blue', [
    '*batch of a step',
    'up to `max_ragged_batch_size`',
    'tokens of many sequences',
  ]);
  picture.arrow(`M${a + 176} 64L${b - 1} 64`);
  picture.arrow(`M${b + 200} 82L${c - 1} 82`);
  picture.rule(158);
  picture.text(16, 178, '*GPU');
  picture.box([c, 190, 216, 62], 'green', ['*forward pass', 'reads and adds blocks']);
  picture.box([b, 190, 200, 62], 'green', ['*sampling', 'a token of each sequence']);
  picture.box([c, 278, 216, 46], 'amber', ['*KV cache: blocks of tokens'], { align: 'middle' });
  picture.arrow(`M${c + 108} 128L${c + 108} 189`);
  picture.arrow(`M${c + 108} 253L${c + 108} 277`, { tail: true });
  picture.arrow(`M${c} 221L${b + 201} 221`);
  picture.arrow(`M${b + 100} 190L${b + 100} 129`);
  picture.text(b + 108, 150, 'tokens', { fill: GREY, size: 12 });
  picture.box([a, 104, 176, 40], 'grey', ['*text to the client']);
  picture.arrow(`M${b} 221L${a + 88} 221L${a + 88} 145`);
  picture.text(a + 96, 210, 'tokens', { fill: GREY, size: 12 });
  picture.text(16, 290, 'If the cache is full, the newest sequence', { fill: GREY });
  picture.text(16, 290 + LINE, 'gives up its blocks and is computed later.', { fill: GREY });

  picture.rule(344);
  const strip = (y, name, bars) => {
    picture.text(16, y + 19, `*${name}`, { size: 12 });
    for (const [from, to, color, text] of bars)
      picture.box([70 + from, y, to - from, 28], color, [text], { align: 'middle', size: 11.5 });
  };
  strip(358, 'host', [
    [0, 74, 'blue', 'launch 1'],
    [78, 152, 'blue', 'launch 2'],
    [222, 282, 'grey', 'read 1'],
    [286, 360, 'blue', 'launch 3'],
    [410, 470, 'grey', 'read 2'],
    [474, 548, 'blue', 'launch 4'],
  ]);
  strip(392, 'GPU', [
    [36, 218, 'green', 'step 1'],
    [222, 406, 'green', 'step 2'],
    [410, 594, 'green', 'step 3'],
  ]);
  picture.text(
    16,
    438,
    'With `async_scheduling`, the host reads the tokens of a step while the next one runs.',
    {
      fill: GREY,
    },
  );
  return picture;
}

function mesh() {
  const picture = new Picture(
    740,
    410,
    'A mesh of 8 ranks: pp 2 x dp 2 x tp 2',
    'Two pipeline stages on two machines. In each, two data ranks of two tensor-parallel ranks. Ranks count along tp first, then sp, dp and pp.',
  );
  const machine = (x, stage) => {
    picture.box([x, 34, 310, 226], 'white', []);
    picture.text(x + 12, 26, `*machine ${stage}, stage ${stage} (\`pp\` ${stage})`);
    for (const dp of [0, 1]) {
      const y = 48 + dp * 112;
      const [ranks, name] = dp === 0 ? [28, 18] : [12, 76]; // Names outside, arrows between.
      picture.box([x + 12, y, 286, 86], 'blue', [], { dashed: true });
      picture.text(
        x + 22,
        y + name,
        `\`dp\` ${dp}: ${dp === 0 ? 'one half' : 'the other half'} of the batch`,
        {
          size: 12,
        },
      );
      for (const tp of [0, 1]) {
        const rank = stage * 4 + dp * 2 + tp;
        picture.box(
          [x + 22 + tp * 166, y + ranks, 100, 46],
          'green',
          [`*rank ${rank}`, `\`tp\` ${tp}`],
          {
            align: 'middle',
          },
        );
      }
      picture.arrow(`M${x + 123} ${y + ranks + 23}L${x + 187} ${y + ranks + 23}`, { tail: true });
      picture.text(x + 155, y + ranks + 16, '`tp`', { anchor: 'middle', fill: GREY });
    }
    for (const tp of [0, 1])
      picture.arrow(`M${x + 72 + tp * 166} 123L${x + 72 + tp * 166} 171`, { tail: true });
    picture.text(x + 155, 151, '`dp`', { anchor: 'middle', fill: GREY });
  };
  machine(16, 0);
  machine(414, 1);
  for (const dp of [0, 1])
    picture.arrow(`M327 ${91 + dp * 112}L413 ${91 + dp * 112}`, { tail: true });
  picture.text(370, 151, '`pp`', { anchor: 'middle', fill: GREY });
  const rows = [
    ['*axis', '*ranks divide', '*ranks exchange'],
    ['`pp`', 'the list of layers', 'activations, between micro-batches'],
    ['`dp`', 'the batch, and state by ZeRO', 'gradients, and weights by ZeRO'],
    ['`sp`', 'the tokens of a sample (1 here)', 'attention heads, inside every layer'],
    ['`tp`', 'each layer', 'activations, inside every layer'],
  ];
  for (const [i, row] of rows.entries()) {
    const y = 290 + i * 25;
    if (i > 0) picture.rule(y - 17);
    for (const [j, cell] of row.entries()) picture.text([20, 92, 400][j], y, cell);
  }
  return picture;
}

const diagrams = {
  'which-stage': whichStage,
  'which-parallelism': whichParallelism,
  'offload-step': offloadStep,
  'inference-step': inferenceStep,
  mesh,
};

const check = process.argv.includes('--check');
mkdirSync(folder, { recursive: true });
for (const [name, draw] of Object.entries(diagrams)) {
  const file = join(folder, `${name}.svg`);
  const svg = String(draw());
  if (!check) writeFileSync(file, svg);
  else if (!existsSync(file) || readFileSync(file, 'utf8') !== svg) {
    console.error(`${file}: differs from scripts/diagrams.mjs; npm run diagrams`);
    process.exitCode = 1;
  }
}
