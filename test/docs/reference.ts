// The public API as the reference shows it: every exported name of an entry point and its members,
// with their texts.
import { join } from 'node:path';
import ts from 'typescript';
import { packageRoot } from '../../lib/runtime/package-root.js';

/** An exported name, or a public member of one. */
export interface Entry {
  /** "optim.AdamW", "Engine.step". */
  path: string;
  /** Its docstring, or "". */
  text: string;
  /** Where it is declared: "lib/tensor/tensor.ts:12". */
  place: string;
  isMember: boolean;
  /** Marked `@internal`: the reference leaves it out. */
  isInternal: boolean;
}

const root = packageRoot();
const HIDDEN = ts.ModifierFlags.Private | ts.ModifierFlags.Protected;

/**
 * All exports of the module `file` and of its namespaces, and the members of classes and
 * interfaces.
 */
export function surfaceOf(file: string): Entry[] {
  const { module, checker } = compiled(file);
  return exportsOf(module, '', { checker, exported: exportedBy(module, checker) });
}

interface Surface {
  checker: ts.TypeChecker;
  exported: ReadonlySet<ts.Symbol>;
}

/** The symbols that a module and its namespaces export. */
function exportedBy(module: ts.Symbol, checker: ts.TypeChecker): Set<ts.Symbol> {
  const targets = checker.getExportsOfModule(module).map((symbol) => targetOf(symbol, checker));
  const inner = targets.filter(({ flags }) => flags & ts.SymbolFlags.ValueModule);
  return new Set([...targets, ...inner.flatMap((symbol) => [...exportedBy(symbol, checker)])]);
}

const targetOf = (symbol: ts.Symbol, checker: ts.TypeChecker): ts.Symbol =>
  symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;

/** All properties of an instance of class `name`, also undeclared ones. */
export function propertiesOf(file: string, name: string): Entry[] {
  const { module, checker } = compiled(file);
  const symbol = checker.getExportsOfModule(module).find((each) => each.name === name);
  const target = checker.getAliasedSymbol(symbol as ts.Symbol);
  const properties = checker.getDeclaredTypeOfSymbol(target).getProperties();
  return properties.map((each) => entryOf(`${name}.${each.name}`, each, checker, true));
}

function compiled(file: string): { module: ts.Symbol; checker: ts.TypeChecker } {
  const path = join(root, file);
  const program = ts.createProgram([path], compilerOptions());
  const checker = program.getTypeChecker();
  const source = program.getSourceFile(path) as ts.SourceFile;
  return { module: checker.getSymbolAtLocation(source) as ts.Symbol, checker };
}

function compilerOptions(): ts.CompilerOptions {
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
  return ts.convertCompilerOptionsFromJson(config.compilerOptions, root).options;
}

function exportsOf(module: ts.Symbol, prefix: string, all: Surface): Entry[] {
  const { checker } = all;
  return checker.getExportsOfModule(module).flatMap((symbol) => {
    const path = prefix + symbol.name;
    const target = targetOf(symbol, checker);
    if (target.flags & ts.SymbolFlags.ValueModule) {
      const namespace = entryOf(path, symbol, checker, false);
      return [namespace, ...exportsOf(target, `${path}.`, all)];
    }
    return [entryOf(path, target, checker, false), ...membersOf(target, path, all)];
  });
}

/**
 * The public members that a class or an interface declares, static ones included, and those of a
 * class that is not exported itself.
 */
function membersOf(owner: ts.Symbol, path: string, all: Surface): Entry[] {
  const { checker, exported } = all;
  const statics = owner.flags & ts.SymbolFlags.Class ? owner.exports : undefined;
  const members = [...(owner.members?.values() ?? []), ...(statics?.values() ?? [])];
  const localEntries = members
    .filter(isPublicMember)
    .map((member) => entryOf(`${path}.${member.name}`, member, checker, true));
  const bases = owner.flags & ts.SymbolFlags.Class ? basesOf(owner, checker) : [];
  const hidden = bases.filter((base) => !exported.has(base));
  const names = new Set(localEntries.map((entry) => entry.path));
  const inherited = hidden.flatMap((base) => membersOf(base, path, all));
  return [...localEntries, ...inherited.filter((entry) => !names.has(entry.path))];
}

/** The base classes that this package declares. */
function basesOf(owner: ts.Symbol, checker: ts.TypeChecker): ts.Symbol[] {
  const type = checker.getDeclaredTypeOfSymbol(owner) as ts.InterfaceType;
  const symbols = checker.getBaseTypes(type).map((base) => base.symbol);
  return symbols.filter((base) => placeOf(base?.declarations?.[0]).startsWith('lib/'));
}

function isPublicMember(member: ts.Symbol): boolean {
  const declaration = member.declarations?.[0];
  if (!declaration || member.name === 'prototype' || member.name.startsWith('__')) return false;
  if (member.flags & ts.SymbolFlags.TypeParameter) return false;
  const name = ts.getNameOfDeclaration(declaration);
  if (name && ts.isPrivateIdentifier(name)) return false;
  return (ts.getCombinedModifierFlags(declaration) & HIDDEN) === 0;
}

function entryOf(
  path: string,
  symbol: ts.Symbol,
  checker: ts.TypeChecker,
  isMember: boolean,
): Entry {
  const text = textOf(symbol, checker);
  const tags = symbol.getJsDocTags(checker);
  const isInternal = tags.some(({ name }) => name === 'internal');
  return { path, text, place: placeOf(symbol.declarations?.[0]), isMember, isInternal };
}

/** A namespace has its text before its `export * as`. */
function textOf(symbol: ts.Symbol, checker: ts.TypeChecker): string {
  const declaration = symbol.declarations?.[0];
  if (declaration && ts.isNamespaceExport(declaration)) {
    return ts
      .getJSDocCommentsAndTags(declaration.parent)
      .map(({ comment }) => ts.getTextOfJSDocComment(comment) ?? '')
      .join('\n');
  }
  return ts.displayPartsToString(symbol.getDocumentationComment(checker)).trim();
}

function placeOf(declaration: ts.Declaration | undefined): string {
  if (!declaration) return '';
  const source = declaration.getSourceFile();
  const { line } = source.getLineAndCharacterOfPosition(declaration.getStart());
  return `${source.fileName.replace(`${root}/`, '')}:${line + 1}`;
}
