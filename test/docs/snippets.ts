// The code blocks of the documentation: found in Markdown, type-checked against the public surface.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { packageRoot } from '../../lib/runtime/package-root.js';

/**
 * A fenced block. A comment `<!-- given ... -->` before it declares the names that it uses; readers
 * do not see it.
 */
export interface Snippet {
  page: string;
  /** Of the block's first line, from 1. */
  line: number;
  language: string;
  given: string;
  code: string;
}

const root = packageRoot();

/** README.md and docs/*.md, relative to the package. */
export function pages(): string[] {
  const guides = readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md'));
  return ['README.md', ...guides.sort().map((name) => `docs/${name}`)];
}

export const readPage = (page: string): string => readFileSync(join(root, page), 'utf8');

/** The blocks of `languages` in a page. */
export function snippetsOf(page: string, text: string, languages: readonly string[]): Snippet[] {
  const block = /(?:<!-- given\n(.*?)-->\s*)?^([ ]*)```(\w+)\n(.*?)^\2```$/gms;
  const found: Snippet[] = [];
  for (const match of text.matchAll(block)) {
    const [whole, given = '', indent = '', language = '', code = ''] = match;
    if (!languages.includes(language)) continue;
    const before = text.slice(0, match.index + whole.indexOf(`\`\`\`${language}\n`));
    const line = before.split('\n').length + 1;
    found.push({ page, line, language, given, code: code.replaceAll(`\n${indent}`, '\n') });
  }
  return found;
}

/** Returns the compiler's messages for each snippet, as "page:line: message". */
export function checkSnippets(snippets: readonly Snippet[]): Map<Snippet, string[]> {
  const files = new Map(snippets.map((snippet, i) => [pathOf(snippet, i), snippet]));
  const program = ts.createProgram([...files.keys()], compilerOptions(), hostWith(files));
  const found = [...files].map(([path, snippet]): [Snippet, string[]] => {
    const source = program.getSourceFile(path) as ts.SourceFile;
    const errors = [
      ...program.getSyntacticDiagnostics(source),
      ...program.getSemanticDiagnostics(source),
    ];
    return [snippet, errors.map((error) => describe(snippet, source, error))];
  });
  return new Map(found);
}

/** Modules of their own, so that a block may await at its top. */
function pathOf({ page, line, language }: Snippet, i: number): string {
  return join(root, `${page}.${line}.${i}.${language === 'js' ? 'mjs' : 'mts'}`);
}

const textOf = ({ given, code }: Snippet): string => given + code;

function compilerOptions(): ts.CompilerOptions {
  const path = join(root, 'tsconfig.json');
  const { config } = ts.readConfigFile(path, ts.sys.readFile);
  const { options } = ts.convertCompilerOptionsFromJson(config.compilerOptions, root);
  const asProgramsAre = { noUncheckedIndexedAccess: false, skipLibCheck: true };
  return { ...options, types: ['node'], allowJs: true, checkJs: true, ...asProgramsAre };
}

function hostWith(files: ReadonlyMap<string, Snippet>): ts.CompilerHost {
  const host = ts.createCompilerHost(compilerOptions());
  const { fileExists, getSourceFile } = host;
  host.fileExists = (path) => files.has(path) || fileExists(path);
  host.getSourceFile = (path, target, ...rest) => {
    const snippet = files.get(path);
    if (!snippet) return getSourceFile(path, target, ...rest);
    return ts.createSourceFile(path, textOf(snippet), target, true);
  };
  return host;
}

function describe(
  { page, line, given }: Snippet,
  source: ts.SourceFile,
  { start = 0, messageText }: ts.Diagnostic,
): string {
  const at = source.getLineAndCharacterOfPosition(start).line - (given.split('\n').length - 1);
  const message = ts.flattenDiagnosticMessageText(messageText, ' ');
  return `${page}:${line + Math.max(at, 0)}: ${message}`;
}
