// addtoken.js URL TOKEN: passes requests on to URL with a bearer token, which the suite of conformance cannot send. It prints its port.
const http = require('http');
const [url, token] = process.argv.slice(2);
const to = new URL(url);
const server = http.createServer((request, response) => {
  const passed = http.request({
    host: to.hostname, port: to.port, method: request.method, path: request.url,
    headers: { ...request.headers, authorization: 'Bearer ' + token },
  }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  passed.on('error', () => response.destroy());
  response.on('close', () => passed.destroy());
  request.pipe(passed);
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
