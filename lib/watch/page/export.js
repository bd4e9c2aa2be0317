// Saves a chart as a picture or as a table. Nothing leaves this machine.
import { color, element } from './dom.js';
import { state } from './state.js';

function save(blob, name) {
  const link = element('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Saves the drawing with its title and legend. */
export function savePng({ plot, spec, lines }) {
  if (!plot) return;
  const source = plot.ctx.canvas;
  const ratio = source.width / plot.width;
  const shown = lines.filter(({ isHidden }) => !isHidden);
  const [top, bottom] = [30 * ratio, (12 + 18 * shown.length) * ratio];
  const canvas = element('canvas', { width: source.width, height: source.height + top + bottom });
  const pen = canvas.getContext('2d');
  pen.fillStyle = color('--card');
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(source, 0, top);
  pen.fillStyle = color('--text');
  pen.font = `600 ${15 * ratio}px system-ui, sans-serif`;
  pen.fillText(spec.title, 12 * ratio, 21 * ratio);
  pen.font = `${12 * ratio}px system-ui, sans-serif`;
  shown.forEach((line, i) => {
    const y = top + source.height + (14 + 18 * i) * ratio;
    pen.fillStyle = line.color;
    pen.fillRect(12 * ratio, y - 8 * ratio, 14 * ratio, 8 * ratio);
    pen.fillStyle = color('--text');
    pen.fillText(line.label, 32 * ratio, y);
  });
  canvas.toBlob((blob) => blob && save(blob, `${spec.id}.png`), 'image/png');
}

/** Quotes a field; a leading apostrophe keeps spreadsheets from reading a formula. */
function field(value) {
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The rows of the drawn lines: x, then a column for each line, with min and max if it has them. */
export function csvOf(lines) {
  const named = lines
    .filter(({ isHidden, isDerived }) => !isHidden || !isDerived)
    .flatMap(({ label, x, y, min, max }) => [
      { label, x, y },
      ...(min ? [{ label: `${label} min`, x, y: min }] : []),
      ...(max ? [{ label: `${label} max`, x, y: max }] : []),
    ]);
  const rows = new Map();
  named.forEach(({ x, y }, column) => {
    x.forEach((place, i) => {
      const row = rows.get(place) ?? rows.set(place, []).get(place);
      row[column] = y[i];
    });
  });
  const head = [
    state.axis === 'step' ? 'step' : 'seconds',
    ...named.map(({ label }) => field(label)),
  ];
  const body = [...rows].sort(([a], [b]) => a - b);
  const line = ([place, values]) =>
    [place, ...named.map((_, column) => values[column] ?? '')].join(',');
  return `${[head.join(','), ...body.map(line)].join('\r\n')}\r\n`;
}

export function saveCsv({ spec, lines }) {
  save(new Blob([csvOf(lines)], { type: 'text/csv' }), `${spec.id}.csv`);
}
