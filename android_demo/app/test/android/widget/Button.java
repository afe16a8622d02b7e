package android.widget;

import android.content.Context;
import java.awt.Color;
import java.awt.FontMetrics;
import java.awt.Graphics2D;

public class Button extends TextView {
    public Button(Context context) {
        super(context);
        paddingX = dp(12);
        paddingY = dp(10);
        color = context.getResources().fakeColor("text");
    }

    @Override
    public void fakeDraw(Graphics2D on) {
        ground(on);
        super.fakeDraw(on);
    }

    /** Draws the background of the text. */
    protected void ground(Graphics2D on) {
        on.setColor(new Color(getContext().getResources().fakeColor("question")));
        on.fillRoundRect(dp(4), dp(6), width - dp(8), height - dp(12), dp(4), dp(4));
    }

    @Override
    protected int centred(FontMetrics metrics, int[] line) {
        String piece = text.toString().substring(line[0], line[1]);
        return (width - 2 * paddingX - metrics.stringWidth(piece)) / 2;
    }
}
