// The messages that pages quote, and the texts of the sources that make them.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { packageRoot } from '../../lib/runtime/package-root.js';

/** A message in the first column of a table that is headed "message". */
export interface Quote {
  line: number;
  text: string;
}

/** Characters of a part that can belong to one message only. */
const SHORTEST = 16;

/** Quoted messages of a page: code in the first column, without plain error codes. */
export function quotesOf(page: string): Quote[] {
  const quotes: Quote[] = [];
  let isInside = false;
  page.split('\n').forEach((line, index) => {
    if (!line.startsWith('|')) isInside = false;
    else if (/^\| message\b/.test(line)) isInside = true;
    else if (isInside) {
      const [, cell = ''] = line.split(/(?<!\\)\|/);
      const codes = Array.from(cell.matchAll(/`([^`]+)`/g), ([, code = '']) => code);
      const texts = codes.filter((code) => !/^DS_[A-Z_]+$/.test(code));
      quotes.push(...texts.map((text) => ({ line: index + 1, text })));
    }
  });
  return quotes;
}

/**
 * The parts of a quote that the sources must contain: the texts after "expected" and "got", or all
 * of it without these words. A part ends at "...", at a sentence, a number and a quoted value.
 */
export function partsOf({ text }: Quote): string[] {
  const message = text.replace(/^.*?(?=\b(expected|got) )/, '');
  const parts = message.split(/\.\.\.|\. |\bexpected |\bgot |\b(?:\d+(?:\.\d+)?|N)\b|"[^"]*"/);
  return parts.map(trimmed).filter((part) => part.length >= SHORTEST && part.includes(' '));
}

const trimmed = (text: string): string => text.replace(/^[\s,:.()[\]]+|[\s,:.()[\]]+$/g, '');

function filesIn(folder: string, ending: RegExp): string[] {
  const root = join(packageRoot(), folder);
  const names = readdirSync(root, { recursive: true, encoding: 'utf8' });
  return names.filter((name) => ending.test(name)).map((name) => join(root, name));
}

function textsOfTypeScript(file: string): string[] {
  const texts: string[] = [];
  const visit = (node: ts.Node): void => {
    const isTemplate =
      ts.isTemplateHead(node) || ts.isTemplateMiddle(node) || ts.isTemplateTail(node);
    if (ts.isStringLiteralLike(node) || isTemplate) texts.push(node.text);
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.Latest));
  return texts;
}

/** Strings that follow each other are one, as the compiler joins them. */
function textsOfCpp(file: string): string[] {
  const joined = readFileSync(file, 'utf8').replace(/"\s*\n\s*"/g, '');
  return Array.from(joined.matchAll(/"((?:[^"\\]|\\.)*)"/g), ([, text = '']) => text);
}

/** All texts between the values of messages, in lib/ and csrc/. */
export function textsOfSources(): string[] {
  const schema = readFileSync(join(packageRoot(), 'lib/config/schema.json'), 'utf8');
  const found = [
    ...filesIn('lib', /(?<!\.d)\.ts$/).flatMap(textsOfTypeScript),
    ...filesIn('csrc', /\.(cc|h|cu)$/).flatMap(textsOfCpp),
    ...Array.from(schema.matchAll(/"((?:[^"\\]|\\.)*)"/g), ([, text = '']) => text),
  ];
  return [...new Set(found.map(trimmed).filter((text) => text.length >= 4))];
}

/**
 * Whether the sources make a part of a quote: it is inside one of their texts, or a text is more
 * than half of it. The rest are values, which stand between the texts of a message.
 */
export function isMade(part: string, texts: readonly string[]): boolean {
  const isMost = (text: string): boolean => text.length * 2 > part.length && part.includes(text);
  return texts.some((text) => text.includes(part) || isMost(text));
}
