package program

import (
	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/strikethrough"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// markdown converts the tree to Markdown. It modifies the tree.
func (p *page) markdown() (string, error) {
	escape := converter.EscapeModeSmart
	if p.plain {
		escape = converter.EscapeModeDisabled
	}
	c := converter.NewConverter(converter.WithEscapeMode(escape), converter.WithPlugins(
		base.NewBasePlugin(),
		commonmark.NewCommonmarkPlugin(commonmark.WithListEndComment(false)),
		strikethrough.NewStrikethroughPlugin(),
		table.NewTablePlugin(
			// Aligned columns can multiply the size of a table.
			table.WithCellPaddingBehavior(table.CellPaddingBehaviorMinimal),
			table.WithNewlineBehavior(table.NewlineBehaviorPreserve),
			table.WithHeaderPromotion(true),
			table.WithSkipEmptyRows(true),
		),
	))
	b, err := c.ConvertNode(p.doc)
	if err != nil {
		return "", faultf(web.FaultContent, "convert the page to Markdown: %v", err)
	}
	return string(b), nil
}
