package android.graphics.drawable;

import java.awt.Graphics2D;

public abstract class Drawable {
    public abstract void fakeDraw(Graphics2D on, int width, int height);
}
