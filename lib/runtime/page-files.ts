// The files and headers of a local page: the server keeps them in memory and reads no other file.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from './package-root.js';
import { required } from './required.js';

/** A file of a page. */
export interface PageFile {
  readonly type: string;
  readonly body: Buffer;
}

const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
};

/** Reads a file of a page. Throws as node:fs does if the package is incomplete. */
export const readPageFile = (folder: string, name: string): PageFile => ({
  type: required(TYPES[required(name.split('.').at(-1))]),
  body: readFileSync(join(folder, name)),
});

/**
 * Returns the folder of the page of lib/`name`. Compiled tests have no copy in their folder, and
 * use the package's.
 */
export function pageFolder(name: string): string {
  const copies = [join(__dirname, '..', name, 'page'), join(packageRoot(), 'lib', name, 'page')];
  return copies.find((folder) => existsSync(folder)) ?? required(copies[0]);
}

/** Content-Security-Policy without inline scripts, foreign hosts or frames. */
const SOURCES: Readonly<Record<string, readonly string[]>> = {
  'default-src': [],
  'script-src': ["'self'"],
  'style-src': ["'self'"],
  'connect-src': ["'self'"],
  'img-src': ["'self'", 'blob:', 'data:'],
  'base-uri': [],
  'form-action': [],
  'frame-ancestors': [],
};
const POLICY = Object.entries(SOURCES)
  .map(([name, sources]) => `${name} ${sources.join(' ') || "'none'"}`)
  .join('; ');

/** Header fields of every file of a page. */
export const PAGE_HEADERS: Readonly<Record<string, string>> = {
  'cache-control': 'no-store',
  'content-security-policy': POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
};
