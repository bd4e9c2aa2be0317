// The public surface as the API reference shows it: every name that lib/index.ts exports, with its text.
import { join } from 'node:path';
import ts from 'typescript';
import { packageRoot } from '../../../lib/runtime/package-root.js';

/** An exported name or a public member of one, by its path: "optim.AdamW", "Engine.step". */
export interface Entry {
  path: string;
  /** What its docstring says; "" where there is none. */
  text: string;
  /** Where it is declared, as "lib/tensor/tensor.ts:12". */
  place: string;
  /** A member of a class or an interface, not an export. */
  isMember: boolean;
}

const root = packageRoot();
const HIDDEN = ts.ModifierFlags.Private | ts.ModifierFlags.Protected;

/** All exports of `file`, namespaces and the members of classes and interfaces included. */
export function surfaceOf(file: string): Entry[] {
  const program = ts.createProgram([join(root, file)], compilerOptions());
  const source = program.getSourceFile(join(root, file)) as ts.SourceFile;
  const checker = program.getTypeChecker();
  const module = checker.getSymbolAtLocation(source) as ts.Symbol;
  return exportsOf(module, '', checker);
}

function compilerOptions(): ts.CompilerOptions {
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
  return ts.convertCompilerOptionsFromJson(config.compilerOptions, root).options;
}

function exportsOf(module: ts.Symbol, prefix: string, checker: ts.TypeChecker): Entry[] {
  return checker.getExportsOfModule(module).flatMap((symbol) => {
    const path = prefix + symbol.name;
    const isAlias = (symbol.flags & ts.SymbolFlags.Alias) !== 0;
    const target = isAlias ? checker.getAliasedSymbol(symbol) : symbol;
    const entry = { path, ...described(target, checker), isMember: false };
    if (target.flags & ts.SymbolFlags.ValueModule) {
      return [entry, ...exportsOf(target, `${path}.`, checker)];
    }
    return [entry, ...membersOf(target, path, checker)];
  });
}

/** What a class or an interface declares for its users, static members included. */
function membersOf(owner: ts.Symbol, path: string, checker: ts.TypeChecker): Entry[] {
  const tables = [owner.members, owner.flags & ts.SymbolFlags.Class ? owner.exports : undefined];
  const members = tables.flatMap((table) => [...(table?.values() ?? [])]);
  return members.filter(isPublic).map((member) => {
    return { path: `${path}.${member.name}`, ...described(member, checker), isMember: true };
  });
}

function isPublic(member: ts.Symbol): boolean {
  const declaration = member.declarations?.[0];
  if (!declaration || member.name === 'prototype' || member.name.startsWith('__')) return false;
  return (ts.getCombinedModifierFlags(declaration) & HIDDEN) === 0;
}

function described(symbol: ts.Symbol, checker: ts.TypeChecker): { text: string; place: string } {
  const text = ts.displayPartsToString(symbol.getDocumentationComment(checker)).trim();
  return { text, place: placeOf(symbol.declarations?.[0]) };
}

function placeOf(declaration: ts.Declaration | undefined): string {
  if (!declaration) return '';
  const source = declaration.getSourceFile();
  const { line } = source.getLineAndCharacterOfPosition(declaration.getStart());
  return `${source.fileName.replace(`${root}/`, '')}:${line + 1}`;
}
