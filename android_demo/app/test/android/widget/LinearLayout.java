package android.widget;

import android.content.Context;
import android.view.ViewGroup;

public class LinearLayout extends ViewGroup {
    public LinearLayout(Context context) { super(context); }

    public static class LayoutParams extends ViewGroup.LayoutParams {
        public int gravity;
        public int topMargin;

        public LayoutParams(int width, int height) {}
        public LayoutParams(int width, int height, float weight) {}
        public void setMarginStart(int start) {}
    }

    public void setOrientation(int orientation) {}
    public void setGravity(int gravity) {}
}
