// Finds Chromium or Chrome on this machine.
import { existsSync } from 'node:fs';
import path from 'node:path';

const PROGRAMS = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'];

/** Path of the browser; the variable CHROME names another one. Throws if there is none. */
export function browserProgram() {
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  const found = PROGRAMS.flatMap((name) => folders.map((folder) => path.join(folder, name)));
  const program = process.env.CHROME ?? found.find((file) => existsSync(file));
  if (program) return program;
  throw new Error(
    'expected Chromium or Chrome, found none; apt-get install chromium, or set CHROME',
  );
}
