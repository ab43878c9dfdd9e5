package browser

import (
	"bytes"
	"context"
	"image/png"

	cdpio "github.com/chromedp/cdproto/io"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
)

// capture takes the screenshot and prints the PDF, if requested.
func (v *visit) capture(ctx context.Context) error {
	if v.r.Picture != NoPicture {
		if err := v.picture(ctx); err != nil {
			return explain(ctx, err, "taking the picture")
		}
	}
	if v.r.PDF {
		if err := v.pdf(ctx); err != nil {
			return explain(ctx, err, "printing the page")
		}
	}
	return nil
}

func (v *visit) picture(ctx context.Context) error {
	yes := true
	width, height := v.r.Width, v.r.Height
	p := page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng, OptimizeForSpeed: &yes}
	if v.r.Picture == FullPage {
		m, err := call(ctx, v.conn, page.GetLayoutMetrics, cdp.Empty{})
		if err != nil {
			return err
		}
		if m.CSSContentSize != nil && m.CSSContentSize.Height > float64(height) {
			height = MaxPixels / width
			if h := m.CSSContentSize.Height; h <= float64(height) {
				height = int64(h)
			} else {
				v.out.PictureCut = true
			}
		}
		p.Clip = &page.Viewport{Width: float64(width), Height: float64(height), Scale: 1}
		p.CaptureBeyondViewport = &yes
	}
	got, err := call(ctx, v.conn, page.CaptureScreenshot, p)
	if err != nil {
		return err
	}
	if len(got.Data) > MaxPicture { // halve both dimensions
		no := false
		p.OptimizeForSpeed = &no
		p.Clip = &page.Viewport{Width: float64(width), Height: float64(height), Scale: 0.5}
		if got, err = call(ctx, v.conn, page.CaptureScreenshot, p); err != nil {
			return err
		}
		if len(got.Data) > MaxPicture {
			return fault(FaultSize, "the screenshot has %d bytes, more than %d: use the viewport",
				len(got.Data), MaxPicture)
		}
	}
	config, err := png.DecodeConfig(bytes.NewReader(got.Data))
	if err != nil || int64(config.Width)*int64(config.Height) > MaxPixels {
		return fault(FaultBrowser, "the browser sent an invalid image")
	}
	v.out.Picture, v.out.Width, v.out.Height = got.Data, config.Width, config.Height
	return nil
}

// pdf reads the printed page in parts, so that it can stop at the bound.
func (v *visit) pdf(ctx context.Context) error {
	yes := true
	got, err := call(ctx, v.conn, page.PrintToPDF, page.PrintToPDFParams{
		PrintBackground: &yes, TransferMode: page.PrintToPDFTransferModeReturnAsStream,
	})
	if err != nil {
		return err
	}
	var out []byte
	for {
		part, err := call(ctx, v.conn, cdpio.Read, cdpio.ReadParams{Handle: got.Stream, Size: 1 << 20})
		if err != nil {
			return err
		}
		out = append(out, part.Data...)
		if len(out) > MaxPDF {
			return fault(FaultSize, "the PDF has more than %d bytes", MaxPDF)
		}
		if part.EOF {
			break
		}
	}
	if !bytes.HasPrefix(out, []byte("%PDF-")) {
		return fault(FaultBrowser, "the browser sent an invalid PDF")
	}
	v.out.PDF = out
	return nil
}
