// adoptedStyle stands in for the <style> elements that xterm.js makes: the Content-Security-Policy
// allows no style in the page, but a script may adopt a style sheet. build.mjs puts it in place.
export function adoptedStyle(): HTMLElement {
  const sheet = new CSSStyleSheet();
  const element = document.createElement('div');
  element.hidden = true;
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const replace = (text: string) => sheet.replaceSync(text);
  Object.defineProperty(element, 'textContent', { set: replace });
  Object.defineProperty(element, 'innerText', { set: replace });
  element.remove = () => {
    Element.prototype.remove.call(element);
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
  };
  return element;
}
