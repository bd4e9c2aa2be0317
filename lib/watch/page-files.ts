// The files of the page, in memory: the server reads no other file for a request.

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { packageRoot } from '../runtime/package-root.js';
import { required } from '../runtime/required.js';

/** A file of the page. */
interface PageFile {
  type: string;
  body: Buffer;
}

const SCRIPT = 'text/javascript; charset=utf-8';
const STYLE = 'text/css; charset=utf-8';

/** Scripts of lib/watch/page. */
const SCRIPTS = [
  ...['app.js', 'api.js', 'state.js', 'dom.js', 'charts.js', 'chart.js', 'panels.js', 'export.js'],
];

/** Returns the files by their routes. Throws as node:fs does if the package is incomplete. */
export function pageFiles(): ReadonlyMap<string, PageFile> {
  // Compiled tests have no copy beside them.
  const copies = [join(__dirname, 'page'), join(packageRoot(), 'lib/watch/page')];
  const page = copies.find((folder) => existsSync(folder)) ?? required(copies[0]);
  const plots = dirname(createRequire(__filename).resolve('uplot'));
  const read = (folder: string, name: string, type: string): PageFile => ({
    type,
    body: readFileSync(join(folder, name)),
  });
  return new Map([
    ['/', read(page, 'index.html', 'text/html; charset=utf-8')],
    ['/style.css', read(page, 'style.css', STYLE)],
    ...SCRIPTS.map((name): [string, PageFile] => [`/${name}`, read(page, name, SCRIPT)]),
    ['/uplot.js', read(plots, 'uPlot.iife.min.js', SCRIPT)],
    ['/uplot.css', read(plots, 'uPlot.min.css', STYLE)],
  ]);
}
