package android.graphics.drawable;

import java.awt.Color;
import java.awt.Graphics2D;

public class GradientDrawable extends Drawable {
    private int color;
    private float radius;

    public void setColor(int color) {
        this.color = color;
    }

    public void setCornerRadius(float radius) {
        this.radius = radius;
    }

    @Override
    public void fakeDraw(Graphics2D on, int width, int height) {
        int corner = Math.round(2 * radius);
        on.setColor(new Color(color));
        on.fillRoundRect(0, 0, width, height, corner, corner);
    }
}
