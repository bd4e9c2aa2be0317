// Writes the tables of docs/benchmarks.md and the charts of docs/charts from bench/results.
//
//   npm run charts                      writes them
//   node scripts/charts.mjs --check     fails where a table or a chart differs from its data
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as vega from 'vega';
import * as lite from 'vega-lite';
import { tables } from '../bench/published.mjs';
import { charts } from '../bench/published-charts.mjs';

const docs = join(import.meta.dirname, '..', 'docs');
const RESULTS = 'https://github.com/ds-native/native/blob/main/bench/results';
const STYLE = {
  background: 'white',
  padding: 12,
  config: {
    font: 'DejaVu Sans, Helvetica, Arial, sans-serif',
    view: { stroke: null },
    axis: { labelFontSize: 11, labelLimit: 500, grid: false },
    legend: { labelFontSize: 11, orient: 'bottom', direction: 'horizontal' },
  },
};

async function svgOf(chart) {
  const { spec } = lite.compile({ ...STYLE, ...chart() });
  const svg = await new vega.View(vega.parse(spec), { renderer: 'none' }).toSVG();
  return `${svg}\n`;
}

function markdownOf({ from, head, rows }) {
  const line = (cells) => `| ${cells.join(' | ')} |`;
  const { gpu, cores, commit, date, file } = from;
  return [
    line(head),
    line(head.map(() => '---')),
    ...rows.map(line),
    '',
    `${gpu}, ${cores} cores, commit ${commit}, ${date}: [${file}.json](${RESULTS}/${file}.json).`,
  ].join('\n');
}

function pageWith(page) {
  const used = new Set();
  const text = page.replace(
    /(<!-- table: ([\w-]+) -->\n)[\s\S]*?(<!-- end -->)/g,
    (_, open, name, close) => {
      if (!tables[name])
        throw new Error(`docs/benchmarks.md: no table ${name} in bench/published.mjs`);
      used.add(name);
      return `${open}\n${markdownOf(tables[name]())}\n\n${close}`;
    },
  );
  const left = Object.keys(tables).filter((name) => !used.has(name));
  if (left.length > 0)
    throw new Error(`docs/benchmarks.md: no place for the tables ${left.join(', ')}`);
  return text;
}

const page = join(docs, 'benchmarks.md');
const written = new Map([[page, pageWith(readFileSync(page, 'utf8'))]]);
for (const [name, chart] of Object.entries(charts)) {
  written.set(join(docs, 'charts', `${name}.svg`), await svgOf(chart));
}
if (process.argv.includes('--check')) {
  const stale = [...written].filter(
    ([file, text]) => !existsSync(file) || readFileSync(file, 'utf8') !== text,
  );
  for (const [file] of stale) console.error(`${file}: differs from bench/results; npm run charts`);
  if (stale.length > 0) process.exitCode = 1;
} else {
  mkdirSync(join(docs, 'charts'), { recursive: true });
  for (const [file, text] of written) writeFileSync(file, text);
}
