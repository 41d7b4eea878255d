'use strict';
// Shared by the pages of callback/control and vernier serve. A token is needed for all data. It is kept for this tab
// alone.
let token = '', isConnected = false, isFollowing = false;

const at = (id) => document.getElementById(id);

function element(name, text, attributes = {}, made = document.createElement(name)) {
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
const drawing = (name, attributes) =>
  element(name, undefined, attributes, document.createElementNS('http://www.w3.org/2000/svg', name));

// Numbers come faster than frames.
function onceAFrame(draw) {
  let isDue = false;
  return () => {
    if (!isDue) requestAnimationFrame(() => { isDue = false; draw(); });
    isDue = true;
  };
}

function numberText(value) {
  if (value === null || value === undefined) return 'not finite';
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  return Number(value).toPrecision(5).replace(/\.?0+(e|$)/, '$1');
}

// Steps and values that points [step, lowest, highest] reach over.
function rangeOf(points) {
  return {low: Math.min(...points.map((p) => p[1])), high: Math.max(...points.map((p) => p[2])),
          from: Math.min(...points.map((p) => p[0])), to: Math.max(...points.map((p) => p[0]))};
}

// The line of a chart of 1000 x 100, up and down over the range of each part, and its texts.
function curveOf(points, {low, high, from, to} = rangeOf(points)) {
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

// The answer to a request. Throws Error with the service's reason, and its status.
async function request(path, method = 'GET', body, more = {}) {
  const headers = {Authorization: 'Bearer ' + token, ...more};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const response = await fetch(path, {method, headers, body: body === undefined ? undefined : JSON.stringify(body)});
  if (response.ok) return response;
  let detail = '';
  try {
    detail = (await response.json()).detail;
  } catch { /* it has no body as JSON */ }
  throw Object.assign(new Error(detail || 'status ' + response.status), {status: response.status});
}
const ask = async (path, method, body) => (await request(path, method, body)).json();

// Asks for the token again, and says why.
function showLogin(message) {
  sessionStorage.removeItem('token');
  at('main').hidden = true;
  at('login').hidden = false;
  at('state').textContent = message;
  at('token').focus();
}

function takeEvent(block, handlers) {
  let event = 'message', data = '', id = '';
  for (const line of block.split('\n')) {
    if (line.startsWith('event: ')) event = line.slice(7);
    if (line.startsWith('data: ')) data += line.slice(6);
    if (line.startsWith('id: ')) id = line.slice(4);
  }
  if (data !== '' && handlers[event]) handlers[event](JSON.parse(data));
  return id;
}

// Takes the events of /v1/events until the token is refused. handlers: a function for each kind; `lost` when the
// connection is. load: called when there is one again. EventSource cannot send a token.
async function follow(handlers, load) {
  if (isFollowing) return;
  isFollowing = true;
  for (let last = '', retry = 0; ;) {
    try {
      const response = await request('/v1/events', 'GET', undefined, last === '' ? {} : {'Last-Event-ID': last});
      if (retry > 0) await load();
      retry = 0;
      isConnected = true;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ''; ;) {
        const {value, done} = await reader.read();
        if (done) break;
        const blocks = (text + value).split('\n\n');
        text = blocks.pop();
        for (const block of blocks) last = takeEvent(block, handlers) || last;
      }
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        isConnected = isFollowing = false;
        return showLogin(error.message);
      }
    }
    isConnected = false;
    retry += 1;
    handlers.lost();
    await new Promise((done) => setTimeout(done, Math.min(1000 * 2 ** retry, 30000) * (0.5 + Math.random() / 2)));
  }
}

// Shows the page when there is a good token: load() gets all data, and handlers take what is new.
function start(load, handlers) {
  async function connect(given) {
    token = given;
    try {
      await load();
    } catch (error) {
      return showLogin(error.message);
    }
    sessionStorage.setItem('token', token);
    at('login').hidden = true;
    at('main').hidden = false;
    follow(handlers, load);
  }
  at('login').addEventListener('submit', (event) => { event.preventDefault(); connect(at('token').value.trim()); });
  // #token=… is never sent to a server; it goes from the address as soon as it is read.
  const given = new URLSearchParams(location.hash.slice(1)).get('token') || sessionStorage.getItem('token');
  if (location.hash) history.replaceState(null, '', location.pathname);
  if (given) connect(given);
  else at('token').focus();
}
