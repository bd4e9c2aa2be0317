// Serves the fixed files of the chat page (`ds serve --ui`). The page needs no key; a form asks for
// the key of the API.
import type { ServerResponse } from 'node:http';
import { PAGE_HEADERS, pageFolder, readPageFile } from '../runtime/page-files.js';
import { send } from './send.js';

/** Files of lib/serve/page by route. */
const FILES: Readonly<Record<string, string>> = {
  '/': 'index.html',
  '/ui/style.css': 'style.css',
  '/ui/app.js': 'app.js',
  '/ui/client.js': 'client.js',
  '/ui/talks.js': 'talks.js',
};

/** Trusted Types: the browser refuses to parse strings as markup. */
const POLICY = `${PAGE_HEADERS['content-security-policy']}; require-trusted-types-for 'script'; trusted-types 'none'`;

/** Holds the files in memory. Throws an error of node:fs if the package is incomplete. */
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
