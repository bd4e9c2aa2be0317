// Draft: a configuration during resolution, with the origins of values, errors and notices.
import { ConfigError, formatLocation, type SourceLocation } from './config-error.js';
import { type ConfigDocument, dottedPath, type Path } from './parse.js';
import {
  configSchema,
  isSection,
  propertyOf,
  resolveSchema,
  type Schema,
  type Section,
} from './schema.js';

export type NoticeKind =
  | 'unknown' // a key that neither DeepSpeed nor this library has
  | 'no-effect' // a key that is accepted and changes nothing
  | 'deprecated' // an old name
  | 'coerced' // "500" for 500
  | 'auto' // "auto" where only the default can stand for it
  | 'advice'; // allowed, but probably not meant

/** One line that the user should see; not an error. */
export interface Notice {
  readonly kind: NoticeKind;
  /** The dotted path of the key, as the user wrote it. */
  readonly path: string;
  readonly file: string | null;
  readonly location: SourceLocation | null;
  /** The notice without the location: a sentence with the key as its subject. */
  readonly text: string;
}

/** Returns a notice as "ds_config.json:3:5: fp16.enabled has no effect: ...". */
export function noticeLine({ file, location, path, text }: Notice): string {
  return `${formatLocation(file, location, path)}${path === '' ? ':' : ''} ${text}`;
}

interface Refusal {
  expected: string;
  got: string;
  hint?: string;
}

/** A key of the configuration that the schema declares, and its section. */
interface DeclaredKey {
  readonly section: Section;
  readonly key: string;
  readonly path: Path;
  /** The schema of the key, resolved for its value. */
  readonly schema: Schema;
}

/** Compares two locations by line and column, for a sort; unknown locations are equal to all. */
export function compareLocations(
  a: { location: SourceLocation | null },
  b: { location: SourceLocation | null },
): number {
  if (!a.location || !b.location) return 0;
  return a.location.line - b.location.line || a.location.column - b.location.column;
}

/** A configuration that the passes of its resolution change in place. */
export class Draft {
  readonly value: Section;
  readonly notices: Notice[] = [];
  readonly errors: ConfigError[] = [];
  /** Dotted paths of values that are not in the file, and their source. */
  readonly filled = new Map<string, { from: 'auto' | 'derived'; of: string }>();
  private readonly moves: { to: string; from: Path }[] = [];

  constructor(
    readonly document: ConfigDocument,
    readonly schema: Schema = configSchema,
  ) {
    this.value = document.value;
    const { file, remarks } = document;
    for (const { location, text } of remarks) {
      this.notices.push({ kind: 'advice', path: '', file, location, text });
    }
  }

  /** Records that the value at `to` was at `from` in the user's file. */
  noteMove(from: Path, to: Path): void {
    this.moves.push({ to: dottedPath(to), from: this.pathInFile(from) });
  }

  /** Returns the path in the user's file of the value at `path`. */
  pathInFile(path: Path): Path {
    for (let length = path.length; length > 0; --length) {
      const move = this.moves.find(({ to }) => to === dottedPath(path.slice(0, length)));
      if (move) return [...move.from, ...path.slice(length)];
    }
    return path;
  }

  note(kind: NoticeKind, path: Path, text: string): void {
    this.notices.push({ kind, ...this.where(path), text });
  }

  refuse(path: Path, refusal: Refusal): void {
    this.errors.push(new ConfigError({ ...this.where(path), ...refusal }));
  }

  /** Returns the position of `path` in the user's file. */
  where(path: Path): { path: string; file: string | null; location: SourceLocation | null } {
    const written = this.pathInFile(path);
    const { file, location } = this.document;
    return { path: dottedPath(written), file, location: location(written) };
  }

  /**
   * Visits every declared key of the configuration, sections before their keys. If the visitor
   * returns false, the section's keys are skipped.
   */
  visit(visitor: (declared: DeclaredKey) => unknown): void {
    const enter = (section: Section, schema: Schema, path: Path): void => {
      for (const key of Object.keys(section)) {
        const property = propertyOf(schema, key);
        if (!property) continue;
        const here = [...path, key];
        const resolved = resolveSchema(property, section[key]);
        if (visitor({ section, key, path: here, schema: resolved }) === false) continue;
        const item = section[key];
        if (isSection(item)) enter(item, resolveSchema(property, item), here);
      }
    };
    enter(this.value, this.schema, []);
  }
}
