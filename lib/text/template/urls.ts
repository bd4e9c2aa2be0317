// Texts as parts of URLs, as Python's urllib.parse quotes them.

/** Letters of the query of a URL write a space as "+", and "/" in hexadecimal. */
export function urlQuoted(text: string, isQuery: boolean): string {
  const quoted = Array.from(Buffer.from(text), (byte) => {
    const letter = String.fromCharCode(byte);
    if (/[A-Za-z0-9_.~-]/.test(letter) || (letter === '/' && !isQuery)) return letter;
    return `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  });
  const whole = quoted.join('');
  return isQuery ? whole.replaceAll('%20', '+') : whole;
}
