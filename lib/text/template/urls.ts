// Quotes texts for URLs, as Python's urllib.parse does.

/** Quotes a text for a URL. In a query, a space becomes "+" and "/" is escaped. */
export function quoteUrl(text: string, isQuery: boolean): string {
  const quoted = Array.from(Buffer.from(text), (byte) => {
    const letter = String.fromCharCode(byte);
    if (/[A-Za-z0-9_.~-]/.test(letter) || (letter === '/' && !isQuery)) return letter;
    return `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  });
  const joined = quoted.join('');
  return isQuery ? joined.replaceAll('%20', '+') : joined;
}
