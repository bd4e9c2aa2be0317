// Finds comments and messages in TypeScript, JavaScript and C++ sources.
import ts from 'typescript';

/** Joins comments of whole lines that follow each other. */
function joined(comments) {
  const blocks = [];
  for (const comment of comments) {
    const last = blocks.at(-1);
    const follows = last?.whole && comment.whole && last.end + 1 === comment.line;
    if (follows && last.text.startsWith('//') && comment.text.startsWith('//')) {
      last.text += `\n${comment.text}`;
      last.end = comment.line;
    } else {
      blocks.push({ ...comment, end: comment.line + comment.text.split('\n').length - 1 });
    }
  }
  return blocks;
}

/** Comments of C++ and CUDA; literals are skipped. */
export function commentsOfCpp(source) {
  const token = /"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|\/\/[^\n]*|\/\*[\s\S]*?\*\//g;
  const comments = [];
  let line = 1;
  let from = 0;
  for (const match of source.matchAll(token)) {
    for (let at = from; at < match.index; at++) if (source[at] === '\n') line++;
    from = match.index;
    if (!match[0].startsWith('/')) continue;
    const start = source.lastIndexOf('\n', match.index) + 1;
    const whole = source.slice(start, match.index).trim() === '';
    comments.push({ line, text: match[0], whole });
  }
  return joined(comments);
}

const WORDS = /[a-z]{2,}.* .*[a-z]{2,}.* .*[a-z]{2,}/;

/** The text of a literal, of a template (a value is X), or of a sum of them; null for others. */
function textOf(node) {
  if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) return node.text;
  if (ts.isTemplateExpression(node)) {
    return node.head.text + node.templateSpans.map((span) => `X${span.literal.text}`).join('');
  }
  if (ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.PlusToken) {
    const [left, right] = [textOf(node.left), textOf(node.right)];
    if (left === null && right === null) return null;
    return (left ?? 'X') + (right ?? 'X');
  }
  if (ts.isParenthesizedExpression(node)) return textOf(node.expression);
  return null;
}

/** Finds comments and messages of a script. A message has three words or more. */
export function wordsOfScript(file, source) {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true);
  const lineAt = (at) => tree.getLineAndCharacterOfPosition(at).line + 1;
  const comments = new Map();
  const messages = [];
  const comment = (at) => {
    for (const range of [
      ...(ts.getLeadingCommentRanges(source, at) ?? []),
      ...(ts.getTrailingCommentRanges(source, at) ?? []),
    ]) {
      const start = source.lastIndexOf('\n', range.pos) + 1;
      const whole = source.slice(start, range.pos).trim() === '';
      comments.set(range.pos, {
        line: lineAt(range.pos),
        text: source.slice(range.pos, range.end),
        whole,
      });
    }
  };
  const visit = (node) => {
    comment(node.getFullStart());
    comment(node.end);
    const text = textOf(node);
    if (text !== null) {
      const line = lineAt(node.getStart());
      // Each line of a usage text is a message.
      for (const part of text.split('\n'))
        if (WORDS.test(part)) messages.push({ line, text: part });
      if (!ts.isTemplateExpression(node)) return;
      for (const span of node.templateSpans) visit(span.expression);
      return;
    }
    ts.forEachChild(node, visit);
  };
  visit(tree);
  comment(tree.endOfFileToken.getFullStart());
  const sorted = [...comments.entries()].sort(([a], [b]) => a - b).map(([, found]) => found);
  return { comments: joined(sorted), messages };
}
