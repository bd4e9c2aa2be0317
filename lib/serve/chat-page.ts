// The page of `ds serve --ui`: fixed files for every client, without a key. A form of the page
// asks for the key.
import type { ServerResponse } from 'node:http';
import { PAGE_HEADERS, pageFolder, readPageFile } from '../runtime/page-files.js';
import { send } from './send.js';

/** Files of lib/serve/page, by their routes. */
const FILES: Readonly<Record<string, string>> = {
  '/': 'index.html',
  '/ui/style.css': 'style.css',
  '/ui/app.js': 'app.js',
  '/ui/client.js': 'client.js',
  '/ui/talks.js': 'talks.js',
};

/** The browser refuses every assignment of markup from a text. */
const POLICY = `${PAGE_HEADERS['content-security-policy']}; require-trusted-types-for 'script'; trusted-types 'none'`;

/** The page in memory. Throws as node:fs does if the package is incomplete. */
export class ChatPage {
  private readonly files = new Map(
    Object.entries(FILES).map(([path, name]) => [path, readPageFile(pageFolder('serve'), name)]),
  );

  has(path: string): boolean {
    return this.files.has(path);
  }

  answer(path: string, response: ServerResponse): void {
    const file = this.files.get(path);
    if (!file) return;
    send(response, 200, file.body, {
      ...PAGE_HEADERS,
      'content-security-policy': POLICY,
      'content-type': file.type,
    });
  }
}
