// Package program implements guest-web: it makes one HTTP exchange through the proxy of the sandbox
// and converts the body to text for a model. It runs as the user of commands in a sandbox that is
// destroyed afterwards. Its bounds therefore protect the answer, not the host: an answer is written
// before the time of the request is over.
//
// It connects only to the proxy, reads no files except the certificate authorities of the image,
// and stores nothing.
package program
