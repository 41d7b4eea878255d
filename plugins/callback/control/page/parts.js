'use strict';
// What the dashboards of callback/control and vernier serve share.
const at = (id) => document.getElementById(id);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function numberText(value) {
  if (value === null || value === undefined) return 'not finite';
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  return Number(value).toPrecision(5).replace(/\.?0+(e|$)/, '$1');
}

// The line of a chart of 1000 x 100, up and down over the range of each part [step, lowest, highest], and its texts.
function courseOf(points) {
  const low = Math.min(...points.map((p) => p[1])), high = Math.max(...points.map((p) => p[2]));
  const from = points[0][0], to = points[points.length - 1][0];
  const x = (step) => to === from ? 500 : (step - from) / (to - from) * 1000;
  const y = (value) => high === low ? 50 : 95 - (value - low) / (high - low) * 90;
  let line = '';
  for (const [step, min, max] of points) {
    line += (line === '' ? 'M' : 'L') + x(step).toFixed(1) + ' ' + y(max).toFixed(1);
    if (min !== max) line += 'L' + x(step).toFixed(1) + ' ' + y(min).toFixed(1);
  }
  if (points.length === 1) line += 'h1';
  return {line, value: numberText(points[points.length - 1][2]), range: numberText(low) + ' to ' + numberText(high),
          steps: 'steps ' + from + ' to ' + to};
}

// Asks for the token again, and says why.
function showLogin(message) {
  sessionStorage.removeItem('token');
  at('main').hidden = true;
  at('login').hidden = false;
  at('state').textContent = message;
  at('token').focus();
}
