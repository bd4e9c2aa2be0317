// Measures prose: sentence lengths, and indefinite constructions per 1,000 words.

/** Constructions that hide the actor or nest clauses, each with the name that reports use. */
const CONSTRUCTIONS = [
  ['whose', /\bwhose\b/gi],
  ['who', /\bwho(?:ever|m|mever)?\b/gi],
  ['what clause', /\bwhat (?!is the|are the|if|happens)\w+/gi],
  ['of which', /\b(?:of|in|to|by|for|from|with|on|among|behind) (?:which|whose|whom)\b/gi],
  ['those that', /\bthose(?: (?:that|of|who|which|there|where|alone))?\b/gi],
  ['indefinite actor', /\b(?:nobody|somebody|anybody|none|everybody)\b/gi],
  [
    'told',
    /\b(?:told|tells?|says?|said|knows?|asks?|asked|wish(?:es)?|hears?|heard|wants?|wanted)\b/gi,
  ],
  [
    'alike, beside',
    /\b(?:alike|likewise|beside|by (?:it|them)sel(?:f|ves)|alone|for good|anew)\b/gi,
  ],
];

/** No sentence is longer, in words. */
const LONGEST_SENTENCE = 40;
/** No table cell is longer, in characters. */
const LONGEST_CELL = 120;
/** No line of a page is longer, in columns, except table rows, code and link targets. */
const LONGEST_LINE = 120;

/** Constructions per 1,000 words that a group may have. */
const LARGEST_INDEX = 6;

/** The goal of every group. All but `p90` count violations. */
export const GOAL = { hits: 0, p90: 26, sentences: 0, cells: 0, lines: 0 };

const WORD = /[A-Za-z][A-Za-z'-]*/g;
const countOf = (text, pattern) => text.match(pattern)?.length ?? 0;

/** The prose of one room or page. */
export class Group {
  pieces = [];
  cells = [];
  lines = [];

  /** `text` has blank lines between its paragraphs; `line` is its first. */
  add(file, line, text) {
    this.pieces.push({ file, line, text });
  }

  /** Sentences of at least three words, each with its place. */
  sentences() {
    const found = [];
    for (const { file, line, text } of this.pieces) {
      let start = 0;
      for (const part of text.split(/((?<=[.!?])\s+|\n\s*\n|\n(?=[-*] |\d+\. ))/)) {
        const words = countOf(part, WORD);
        const hits = CONSTRUCTIONS.filter(([, pattern]) => countOf(part, pattern) > 0);
        if (words >= 3) {
          const lead = part.length - part.trimStart().length;
          const above = countOf(text.slice(0, start + lead), /\n/g);
          found.push({
            file,
            line: line + above,
            text: part,
            words,
            hits: hits.map(([name]) => name),
          });
        }
        start += part.length;
      }
    }
    return found;
  }

  measure() {
    const text = this.pieces.map((piece) => piece.text).join('\n\n');
    const words = countOf(text, WORD);
    const hits = CONSTRUCTIONS.reduce((sum, [, pattern]) => sum + countOf(text, pattern), 0);
    const lengths = this.sentences().map((sentence) => sentence.words);
    lengths.sort((a, b) => a - b);
    const longest = lengths.filter((length) => length > LONGEST_SENTENCE).length;
    // Two hits pass in a text of a few words, where the ratio means nothing.
    const index = hits <= 2 ? 0 : Math.ceil((10_000 * hits) / words) / 10;
    return {
      words,
      index,
      hits: index <= LARGEST_INDEX ? 0 : hits,
      p90: lengths.length < 10 ? 0 : lengths[Math.floor(0.9 * lengths.length)],
      sentences: longest,
      cells: this.cells.length,
      lines: this.lines.length,
    };
  }

  /** Reasons why this group misses its goal, the worst first: "file:line: reason: text". */
  worst(number) {
    const places = this.sentences()
      .map((sentence) => {
        const long = Math.max(0, sentence.words - GOAL.p90);
        return { ...sentence, weight: 10 * sentence.hits.length + long };
      })
      .filter((sentence) => sentence.weight > 0)
      .sort((a, b) => b.weight - a.weight)
      .map(({ file, line, text, words, hits }) => {
        const reason = [...hits, ...(words > GOAL.p90 ? [`${words} words`] : [])].join(', ');
        return `${file}:${line}: ${reason}: ${text.replace(/\s+/g, ' ').trim()}`;
      });
    const cell = ({ file, line, text }) =>
      `${file}:${line}: cell of ${text.length} characters: ${text}`;
    const wide = ({ file, line, text }) => `${file}:${line}: ${text.length} columns`;
    const rest = [...this.cells.map(cell), ...this.lines.map(wide)];
    return [...rest.slice(0, Math.ceil(number / 2)), ...places].slice(0, number);
  }
}

const plain = (text) =>
  text
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replace(/``[^`]*(?:`[^`]+)*``|`[^`]*`/g, 'X')
    .replace(/<[^>]+>/g, ' ');

/** Adds the prose of a Markdown page: no code, no headings, no tables; cells and lines apart. */
export function addPage(group, file, source) {
  const prose = [];
  let fence = null;
  let comment = false;
  source.split('\n').forEach((line, index) => {
    const place = { file, line: index + 1 };
    const mark = /^\s*(```+|~~~+)/.exec(line)?.[1];
    if (mark && (fence === null || mark.startsWith(fence))) {
      fence = fence === null ? mark : null;
      prose.push('');
      return;
    }
    if (line.startsWith('<!--')) comment = true;
    if (comment || fence !== null) {
      if (line.includes('-->')) comment = false;
      prose.push('');
      return;
    }
    if (/^\s*\|/.test(line)) {
      const cells = line
        .trim()
        .slice(1, -1)
        .split(/(?<!\\)\|/);
      for (const cell of cells) {
        const text = cell.trim().replace(/\]\([^)]*\)/g, ']');
        if (text.length > LONGEST_CELL) group.cells.push({ ...place, text });
      }
      prose.push('');
      return;
    }
    if (line.replace(/\]\([^)]*\)/g, ']').length > LONGEST_LINE && !/https?:/.test(line)) {
      group.lines.push({ ...place, text: line });
    }
    prose.push(/^#+ /.test(line) ? '' : plain(line));
  });
  // Blank lines stay, so a sentence keeps its line.
  group.add(file, 1, prose.join('\n'));
}

/** Adds comments of a source file. A comment: `{ line, text }`, its marks included. */
export function addComments(group, file, comments) {
  for (const { line, text } of comments) {
    const bare = text
      .replace(/^\/\*+|\*+\/$/g, '')
      .split('\n')
      .map((row) => row.replace(/^\s*(?:\/\/+!?|\*)(?!\/)/, ''))
      // Diagrams, tables and code are no prose.
      .map((row) => (/^ {4,}|\S {3,}\S|[─│┌└►▼→←═]/.test(row) ? '' : row.replace(/^ /, '')))
      .join('\n');
    const prose = plain(bare)
      .replace(/^@(?:param|throws|returns)\b/gm, '')
      .replace(/^biome-ignore.*|^@ts-.*|^#?(?:region|endregion).*/gm, '');
    group.add(file, line, prose);
  }
}
