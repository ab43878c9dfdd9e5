// Package core holds the types, limits and errors that the engine shares with its services.
package core
