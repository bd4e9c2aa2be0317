// Wraps paragraphs of comments at 100 columns and reports other longer lines. Usage:
// format-comments.mjs [--write] [FILE...]; the default is all files that git does not ignore.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const WIDTH = 100;

const SLASHES = ['.ts', '.mts', '.js', '.mjs', '.cjs', '.cc', '.h', '.cu', '.cuh'];
const HASHES = ['.cmake', '.sh', '.py', '.yml', '.txt', '.gyp', ''];
/** Files that are generated, recorded or in a prescribed format. */
const LEFT_OUT =
  /\.generated\.|(^|\/)(golden|results)\/|(^|\/)(LICENSE|NOTICE)$|(^|\/)\.git(ignore|attributes)$/;

/**
 * A line that keeps its breaks: a list, a table, an instruction for a tool, or text aligned by
 * blanks.
 */
const VERBATIM = /^(\s|[-*] |\||\d+[.)] |#|biome-|shellcheck|clang-format|NOLINT)|\S {2,}\S/;

/** A comment on whole lines: the prefix of each line, and its text. */
function commentAt(lines, at, hashes) {
  const mark = hashes ? /^(\s*#)(?!!)(?: (.*))?$/ : /^(\s*\/\/[/!]?)(?: (.*))?$/;
  const first = mark.exec(lines[at]);
  if (first) {
    let end = at;
    const texts = [];
    for (let next = first; next && next[1] === first[1]; next = mark.exec(lines[end] ?? '')) {
      texts.push(next[2] ?? '');
      end++;
    }
    return {
      end,
      texts,
      print: (wrapped) => wrapped.map((text) => `${first[1]} ${text}`.trimEnd()),
      prefix: first[1].length + 1,
    };
  }
  return hashes ? null : blockAt(lines, at);
}

/** A block comment with two asterisks. */
function blockAt(lines, at) {
  const opening = /^(\s*)\/\*\*(?: (.*))?$/.exec(lines[at]);
  if (!opening) return null;
  const [, indent, rest = ''] = opening;
  const prefix = indent.length + 3;
  const print = (texts) => [
    `${indent}/**`,
    ...texts.map((text) => `${indent} * ${text}`.trimEnd()),
    `${indent} */`,
  ];
  if (rest.endsWith('*/')) {
    return { end: at + 1, texts: [rest.slice(0, -2).trimEnd()], print, prefix };
  }
  let end = at + 1;
  const texts = rest ? [rest] : [];
  while (end < lines.length && !lines[end].includes('*/')) {
    texts.push(lines[end].replace(/^\s*\* ?/, ''));
    end++;
  }
  const isPlain = /^\s*\*\/\s*$/.test(lines[end] ?? '');
  return isPlain ? { end: end + 1, texts, print, prefix } : null;
}

/** `texts` with each paragraph wrapped that is too wide. */
function wrapped(texts, width) {
  const out = [];
  for (let i = 0; i < texts.length; ) {
    let end = i + 1;
    if (texts[i] !== '' && !VERBATIM.test(texts[i])) {
      while (end < texts.length && texts[end] !== '' && !VERBATIM.test(texts[end])) end++;
    }
    const paragraph = texts.slice(i, end);
    const isWide = paragraph.some((text) => text.length > width);
    const fits = !isWide || VERBATIM.test(paragraph[0]);
    out.push(...(fits ? paragraph : fill(paragraph.join(' '), width)));
    i = end;
  }
  return out;
}

function fill(text, width) {
  const lines = [''];
  for (const word of text.split(' ')) {
    const line = lines.at(-1);
    if (line === '') lines[lines.length - 1] = word;
    else if (line.length + 1 + word.length <= width) lines[lines.length - 1] = `${line} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** `text` with its comments wrapped. */
export function formatted(text, extension) {
  const hashes = HASHES.includes(extension);
  const lines = text.split('\n');
  const out = [];
  for (let at = 0; at < lines.length; ) {
    const comment = commentAt(lines, at, hashes);
    if (!comment) {
      out.push(lines[at++]);
      continue;
    }
    const own = lines.slice(at, comment.end);
    const isWide = own.some((line) => line.length > WIDTH);
    const printed = comment.print(wrapped(comment.texts, WIDTH - comment.prefix));
    out.push(...(isWide ? printed : own));
    at = comment.end;
  }
  return out.join('\n');
}

/**
 * Numbers of lines that are too wide. A line that is wide because of one literal, and a line of a
 * template, are allowed.
 */
export function wideLines(text) {
  const literals =
    /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`|\/(?:[^/\\\n]|\\.)+\/[a-z]*/g;
  let inTemplate = false;
  return text.split('\n').flatMap((line, i) => {
    const wasInTemplate = inTemplate;
    if ((line.replace(/\\`/g, '').match(/`/g) ?? []).length % 2 === 1) inTemplate = !inTemplate;
    if (line.length <= WIDTH || wasInTemplate || inTemplate) return [];
    return /^\s*(\/\/|\*|\/\*|#)/.test(line) || line.replace(literals, '').length > WIDTH
      ? [i + 1]
      : [];
  });
}

function filesOf(args) {
  const named = args.filter((arg) => !arg.startsWith('--'));
  if (named.length > 0) return named;
  const git = ['ls-files', '--cached', '--others', '--exclude-standard'];
  const { stdout } = spawnSync('git', git, { cwd: root, encoding: 'utf8' });
  return [...new Set(stdout.split('\n'))].filter((file) => file !== '' && !LEFT_OUT.test(file));
}

function main(args) {
  const write = args.includes('--write');
  let problems = 0;
  for (const file of filesOf(args)) {
    const extension = extname(file);
    if (!SLASHES.includes(extension) && !HASHES.includes(extension)) continue;
    const text = read(join(root, file));
    if (text === null) continue;
    const next = formatted(text, extension);
    if (write && next !== text) writeFileSync(join(root, file), next);
    for (const line of wideLines(write ? next : text)) {
      console.error(`${file}:${line}: more than ${WIDTH} columns`);
      problems++;
    }
  }
  console.log(
    `format-comments: ${problems} problems${write ? '' : '; `npm run format` wraps comments'}`,
  );
  process.exitCode = problems > 0 ? 1 : 0;
}

/** The text of a file; null if the file is deleted or binary. */
function read(path) {
  try {
    const text = readFileSync(path, 'utf8');
    return text.includes('\0') ? null : text;
  } catch {
    return null;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main(process.argv.slice(2));
